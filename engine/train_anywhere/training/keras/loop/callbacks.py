"""The callbacks of a run's one call of `keras.Model.fit`: the user's, then the work of the run.

In a process that resumes, `fit` starts at the first batch of an epoch. Until the saved position, the model's train function only reads
batches, or nothing if they are read by index, and no callback is called. So `fit` uses iterators, shuffles and the hooks of a PyDataset as
in a run that never stopped. A stop is an exception, so `on_train_end` is called once in a run.

This relies on behavior of Keras that is not documented: `fit` looks up `train_function` in each call, keeps a given CallbackList,
reads `validation_freq` after each epoch, and returns the dict of logs that the last hook of a validation got.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from train_anywhere.config.checks.monitors import from_keras_name
from train_anywhere.data.tf.streams import Stream
from train_anywhere.errors import DataError, RanksDifferError
from train_anywhere.training.keras.checkpoint import copy_values
from train_anywhere.training.keras.dropin.gradients import set_flags
from train_anywhere.training.keras.loop.step_work import StepWork, Stopped
from train_anywhere.training.keras.module import Module, to_numbers
from train_anywhere.training.plan import validation_due

MOST_STEPS = 8
"""The most steps of a call if the user does not say it: a signal waits for them."""


def to_keras_names(metrics: Mapping[str, float], prefixes: Mapping[str, str]) -> dict[str, float]:
    """Rename the metrics of some splits for Keras callbacks: with {"val": "val_"} val/loss becomes val_loss."""
    parts = ((name.partition("/"), value) for name, value in metrics.items())
    return {prefixes[split] + name: value for (split, _, name), value in parts if name and split in prefixes}


def refuse_different_layers(module: Module) -> None:
    """Raise RanksDifferError if ranks train different variables. All processes call this."""
    count, trained = module.strategy.processes, {id(v) for v in module.model.trainable_variables}
    agreed = module.strategy.sum([float(id(v) in trained) for v in module.model.variables])
    pairs = zip(module.model.variables, agreed, strict=True)
    if different := [f"{v.path} on {ranks:.0f}" for v, ranks in pairs if 0 < ranks < count]:
        raise RanksDifferError(
            f"the {count} ranks train different layers ({', '.join(different[:3])} of them): a callback sets `trainable` on some ranks "
            "only; let it do so on all of them."
        )


class TrainingCallback(StepWork):
    """The hooks that `fit` and `evaluate` call."""

    def fit(self) -> None:
        """Train from the position to the end of the run, or until a signal, by one call of `keras.Model.fit`."""
        position, plan, trainer, loader = self.position, self.plan, self.config.trainer, self.loader
        if trainer.is_too_early(position.epoch, position.step):  # raised since the checkpoint
            position.patience.postpone(trainer.early_stopping)
        self.progress.start_training(position.step)
        self.timer.start()
        position.timed_out = self.timer.was_over
        complete, per_epoch = self.is_complete(), plan.steps_per_epoch
        self._trained = min(position.batch // plan.accumulate, per_epoch)
        # what the user's data yields may depend on what was read before
        again = any(loader.is_read_again(split) for split in ("train", "val"))
        first = 0 if again and not complete else position.epoch
        self.replaying = not complete and (first, 0) < (position.epoch, self._trained)
        data, validation = loader.for_fit(plan, position), {}
        steps, given = self.model.steps_per_execution, trainer.extra.get("steps_per_execution")
        # a call ends at the position, at the last step and, if the data has no end, with each epoch
        ends = [self._trained % per_epoch, plan.total_steps % per_epoch]
        ends += [per_epoch] if data["steps_per_epoch"] else []
        if given and not self.module.several:
            steps = given
        elif steps == 1:
            steps, ends = MOST_STEPS, [*ends, *self._due_steps()]
        whole = math.gcd(*ends)
        self.model.steps_per_execution = next(n for n in range(steps, 0, -1) if whole % n == 0)
        if plan.val_batches:
            found = loader.evaluation("val", plan.val_batches)
            validation = {"validation_data": found["x"], "validation_steps": found["steps"]}
        with suppress(Stopped):
            self.model.fit(
                **data,
                **validation,
                epochs=first if complete else plan.max_epochs,
                initial_epoch=first,
                validation_freq=self.validations,
                callbacks=self,
                verbose=0,
            )

    def _due_steps(self) -> list[int]:
        """Return steps of whose common divisors one is the number of steps of a call: a call ends wherever anything is due."""
        plan, trainer = self.plan, self.config.trainer
        splits = self.loader.splits.values()
        endless = any(isinstance(data, Stream) and data.length is None for data in splits)
        looks = self.train_hooks or self.test_hooks or self.model.run_eagerly or trainer.profiler is not None
        if looks or endless or self.module.several:
            return [1]
        due = [plan.steps_per_epoch, trainer.log_every_n_steps, plan.val_every if plan.val_batches else 0]
        for one in self.observers.all:
            step: int | None = self.position.step
            for _ in range(2):
                step = None if step is None else one.next_step(step)
                due.append(step or 0)
        return due

    # ---- before the position

    def _skip(self, split: str, iterator: Iterator[Any]) -> Any:
        """Read the batches of a call that was made before the position, if later ones depend on them."""
        if self.loader.is_read_again(split):
            deque(itertools.islice(iterator, self.model.steps_per_execution), 0)
        return {}

    def _resume(self) -> None:
        """Train from here on: `fit` has reached the position."""
        self.replaying = False
        self.model.train_function, self.model.test_function = self._functions
        self._restore_counts()

    def _read_validation(self, step: int) -> None:
        """Read the batches of a validation within an epoch before the position, if their order depends on it."""
        done, plan = step * self.plan.accumulate, self.plan
        number = self.epoch * plan.steps_per_epoch + step
        due = validation_due(self.config.trainer, plan, self.epoch, done, number)
        if not self.loader.is_read_again("val"):
            return
        if done >= plan.train_batches:
            self.validations[:] = [self.epoch + 1] if due else []
        elif due:
            self.evaluate()

    # ---- hooks of training

    def on_train_begin(self, logs: Any = None) -> None:
        """Call the user's callbacks. In a resumed run, restore their state and what they changed."""
        variables = [*self.module.weights().values(), *self.module.optimizer_state().values()]
        restore = self.module.strategy.snapshot(variables if self.restored and self.has_users else [])
        super().on_train_begin(logs)
        restore()
        if self.restored:
            set_flags(self.model, self.restored["flags"])
            self.module.saved_flags = self.restored["traced"] or None
            self.states.restore(self.restored["callbacks"], self.module.strategy)
        self._functions = self.model.train_function, self.model.test_function
        if self.replaying:
            self.model.train_function = partial(self._skip, "train")
            self.model.test_function = partial(self._skip, "val")
        self.observers.start(self.position.step)
        self.heartbeat.enter("step", "data")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start an epoch."""
        self.epoch, self._measured, self._leaving, self._logged = epoch, False, False, False
        if not self.replaying:
            self._call("on_epoch_begin", epoch, {})
        refuse_different_layers(self.module)
        self.pace.start()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Call the callbacks."""
        if self.train_hooks and not self.replaying:
            self._call("on_train_batch_begin", batch, {})
        self.pace.ask()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Process the end of a call of the train function."""
        plan, position = self.plan, self.position
        if self.replaying:
            done = min(batch + 1, plan.steps_per_epoch)
            reached = (self.epoch, done) == (position.epoch, self._trained)
            if not (reached and position.pending):
                self._read_validation(done)
            if not reached:
                return
            self._resume()
        else:
            left = plan.steps_per_epoch - position.batch // plan.accumulate
            steps = min(self.model.steps_per_execution, left)
            self.heartbeat.computed(self.pace.seconds(self.heartbeat, steps))
            self.module.logs, self._logged = logs, True
            if self.train_hooks:
                self._call("on_train_batch_end", batch, self.module.batch_logs())
            self._end_step(steps)
        if position.preempted:
            self.leave()
        if position.pending:
            self._end_interval()
        leaves = position.ended or position.timed_out or position.step >= plan.total_steps
        if position.pending and leaves:
            self.model.stop_training = self._leaving = True
        self.pace.start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Process the end of an epoch, with its validation."""
        position = self.position
        if self.replaying:
            if position.batch == 0 and epoch + 1 == position.epoch:
                self._resume()
            return
        if not position.pending:
            raise DataError(
                f"the training data ended after {position.batch} of {self.plan.train_batches} batches of an epoch; use "
                f"trainer.limit_train_batches={max(1, position.batch)}, or data that says how many batches it has."
            )
        validated = self._measured or bool(self.validations)
        metrics = self._metrics(validated)
        if not self._measured:
            self._count_patience(epoch, metrics, validated)
        if self.module.several or not self._logged:
            logs.clear()
            logs.update(to_keras_names(metrics, {"train": "", "val": "val_"}))
        elif self._measured:
            logs.update(to_keras_names(metrics, {"val": "val_"}))
        numbers = to_numbers(logs)
        known = {*numbers, "learning_rate"}  # Keras adds that one; it is logged as lr
        if self._leaving:
            self.model.stop_training = position.ended
        self._call("on_epoch_end", epoch, numbers)
        self.added = {}
        for name in [name for name in numbers if name not in known]:
            with suppress(TypeError, ValueError):  # a callback may keep anything in the logs
                self.added[from_keras_name(name)] = float(numbers[name])
        self._close(epoch, metrics | self.added, validated)
        self.model.stop_training = self.is_complete()

    def on_train_end(self, logs: Any = None) -> None:
        """Call the callbacks; validate and save weights that they change."""
        self.timer.stop()
        weights, strategy = self.module.weights(), self.module.strategy
        before = copy_values(weights)
        self.module.write_averages()
        super().on_train_end(logs)
        now = copy_values(self.module.weights())
        if {n: a.shape for n, a in now.items()} != {n: a.shape for n, a in before.items()}:
            self.progress.note(
                "callbacks added or removed weights of the model in on_train_end: the checkpoint and exports have the model before that, "
                "the test measures the one after it."
            )
            self.module.keep_weights(weights)
            return
        changed = any(array.tobytes() != before[name].tobytes() for name, array in now.items())
        if not any(strategy.sum([float(changed)])):
            return
        position, users = self.position, self.callbacks
        self.progress.note(
            "the weights changed when training ended (a callback's on_train_end, use_ema): the new ones are validated, saved and tested."
        )
        strategy.broadcast_variables(list(weights.values()))
        try:
            if self.plan.val_batches:
                self.callbacks = []  # under `fit` alone none sees it, and the history keeps the epoch's own values
                self.evaluate(load=lambda: None)
            else:
                self._keep_validated()
        finally:  # training would continue from the weights before
            self.callbacks = users
            for name, variable in weights.items():
                variable.assign(before[name])
        validated = any(name.startswith("val/") for name in position.metrics)
        self.save(self._score(position.metrics | self.added, validated))

    # ---- hooks of evaluation

    def on_test_begin(self, logs: Any = None) -> None:
        """Keep the state of a validation, which runs again if it is interrupted, and use the weights to measure."""
        if self.replaying:
            return
        if self.load is None:
            self._keep_state()
        self.module.strategy.average_variables(self.module.moving_statistics())
        self.heartbeat.enter("validation" if self.split == "val" else self.split)
        super().on_test_begin(logs)
        if self.load:
            self.load()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Call the callbacks."""
        if self.test_hooks and not self.replaying:
            self._call("on_test_batch_begin", batch, {})

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report progress, and check for a signal, which may interrupt a validation or a test too."""
        if self.replaying:
            return
        self.module.logs = logs
        if self.test_hooks:
            self._call("on_test_batch_end", batch, self.module.batch_logs())
        self.heartbeat.evaluated_batch()
        self.check_requests()
        self._leave_test()

    def on_test_end(self, logs: Any = None) -> None:
        """Give the callbacks, and `fit`, the results over all ranks."""
        if self.replaying:
            return
        if not self.module.several:
            self.module.logs = logs
        metrics = self.reduce(self.split)
        self._leave_test()
        if self.split == "val" and (self.load or self.has_users):
            self._keep_validated()
        self.position.metrics |= metrics
        if self.module.several:
            self.module.logs = {}
            logs.clear()
            logs.update(to_keras_names(metrics, {self.split: ""}))
        test = self.split == "test"
        self.heartbeat.enter("checkpoint" if test else "step", "" if test else "data")
        super().on_test_end(logs)
