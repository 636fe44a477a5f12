"""What happens between the steps: metrics, validation, early stopping, checkpoints, stopping."""

import time
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Observers, Step
from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.training.keras.checkpoint.buffers import host_value
from train_anywhere.training.keras.checkpoint.callback_state import CallbackStates
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.checkpoint.state import StateWriter
from train_anywhere.training.keras.dropin.trainable import set_flags
from train_anywhere.training.keras.loop.agreement import refuse_different_layers, refuse_different_weights
from train_anywhere.training.keras.loop.calls import Calls, look_at_each
from train_anywhere.training.keras.loop.tensorboard import MetricsWriter
from train_anywhere.training.keras.module import Module, TaskModule
from train_anywhere.training.monitored import judged, monitored
from train_anywhere.training.plan import Plan, validation_due
from train_anywhere.training.stop import Stop


class Loader(Protocol):
    """Where batches come from, see `train_anywhere.training.keras.batches`."""

    def training(self, plan: Plan, position: Position) -> tf.data.Dataset:
        """Endless batches from a position on."""
        ...

    def evaluation(self, part: str, limit: int) -> tuple[tf.data.Dataset, tf.data.Dataset | None]:
        """The first batches of a part; apart, the last one if it has fewer rows."""
        ...


class TrainingCallback:
    """The order of events around the steps.

    Reading what was counted waits for the device and, with several ranks, is a collective. So it is read every
    `log_every_n_steps` steps and at the end of an epoch, together with the requests of any rank to stop and of
    rank 0 to save.

    Args:
        checkpoints: on rank 0, None on the others.
        others: Keras' own callbacks.
        states: of those that all ranks have.

    Attributes:
        observers: called after steps, validations and checkpoints.
        restored: what state.json of the checkpoint holds that the run resumes from.
        hooked: callbacks that all ranks have are called at every step.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        position: Position,
        module: Module,
        loader: Loader,
        metrics: MetricsWriter,
        checkpoints: StateWriter | None,
        stop: Stop,
        others: keras.callbacks.CallbackList,
        states: CallbackStates,
    ) -> None:
        self.config, self.plan, self.position = config, plan, position
        self.module, self.loader, self.others, self.states = module, loader, others, states
        self.metrics, self.checkpoints, self.stop = metrics, checkpoints, stop
        self.observers = Observers()
        self.save_requested = False
        self.batch_logs: Mapping[str, float] = {}
        self.epoch_logs: dict[str, float] = {}
        self.restored: dict[str, Any] | None = None
        self.units: float | None = None
        self.hooked = look_at_each(states.callbacks.values())
        self.calls = Calls(config, each=not module.several or look_at_each(others.callbacks))

    def on_train_begin(self) -> None:
        """Call the callbacks, which set the model up, then restore what they change of a run that resumes, and their state."""
        variables = [*self.module.weights().values(), *self.module.optimizer_state().values()]
        resumed = self.restored and self.states.callbacks
        before = [np.array(host_value(v)) for v in variables] if resumed else []
        self.others.on_train_begin()
        for variable, value in zip(variables, before, strict=False):
            variable.assign(value)
        for line in self.states.lost():
            self.metrics.progress.note(line)
        if self.restored:
            set_flags(self.module.model, self.restored["flags"])
            self.states.restore(self.restored["callbacks"], self.module.strategy)

    def on_train_batch_end(self, batch: int, count: int) -> None:
        """After each call, which made `count` optimizer steps; `batch` is the number of the last one."""
        position = self.position
        if self.checkpoints:
            self.checkpoints.checkpointer.check()
        position.advance(self.plan, count)
        fresh = None
        if position.pending or position.step % self.config.trainer.log_every_n_steps == 0:
            fresh = self.reduce("train") | {"lr": self.module.rate()}
            position.metrics |= fresh
            if not position.pending:  # at the end of the epoch, in one row with the validation
                self.metrics.write(position.step, position.epoch, fresh)
            counted = self.module.sums.counted() if isinstance(self.module, TaskModule) else ()
            self.observers.after_step(
                Step(position.step, position.epoch, position.batch, fresh, counted, last=position.pending)
            )
        self.batch_logs = in_words_of_keras(fresh) if fresh else BatchLogs(self.module, "train")
        batches = count * self.plan.accumulate
        units = self.units if fresh else None
        self.metrics.progress.batch(position.epoch, position.batch - 1, fresh, units, batches)
        self.look_at_flag()
        due = self.save_requested or self.observers.due(position.step)
        if due and not (position.pending or position.preempted):
            self.save()

    def on_epoch_end(self, epoch: int) -> None:
        """After the last step of an epoch, or the one in which the loop was stopped."""
        if self.position.pending and not self.position.preempted:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Validation, early stopping, checkpoint; a run that was stopped before them resumes here."""
        position, trainer, epoch = self.position, self.config.trainer, self.position.epoch
        parts = ["train"]
        if validation_due(trainer, self.plan, epoch, position.step):
            self.evaluate("val", self.plan.val_batches)
            if position.preempted:
                return
            parts.append("val")
        metrics = {k: v for k, v in position.metrics.items() if k == "lr" or k.partition("/")[0] in parts}
        judged_now = "val" in parts or not self.plan.val_batches
        if judged_now and trainer.early_stopping.patience is not None:
            value = monitored(metrics, trainer.early_stopping.monitor, "trainer.early_stopping.monitor")
            position.patience.judge(value, trainer.early_stopping)
        self.metrics.write(position.step, epoch, metrics)
        self.metrics.progress.validated(epoch, metrics)
        self.observers.after_validation(position.step, metrics)
        self.epoch_logs = in_words_of_keras(metrics)
        self.others.on_epoch_end(epoch, self.epoch_logs)
        self.look_at_others(agree=True)
        if (every := self.config.monitor.compare_weights_every_n_epochs) and (epoch + 1) % every == 0:
            refuse_different_weights(self.module)
        position.close_epoch(self.plan)
        over = position.over(self.plan, trainer.early_stopping)
        if over or (epoch + 1) % self.config.checkpoint.every_n_epochs == 0:
            self.save(self.value_of(metrics, "val" in parts))

    def value_of(self, metrics: Mapping[str, float], validated: bool) -> float | None:
        """The value by which a checkpoint may be the best, where it was measured. Raises ConfigError: there is none of that name."""
        monitor = self.config.checkpoint.monitor
        if monitor and (validated or monitor.startswith("train/")):
            monitored(metrics, monitor, "checkpoint.monitor")
        return judged(metrics, monitor) if monitor else None

    def on_test_batch_end(self, batch: int) -> None:
        """A signal may interrupt a validation or a test too."""
        heartbeat.evaluated_batch()
        self.look_at_flag()

    def evaluate(self, part: str, batches: int, load: Callable[[], object] | None = None) -> None:
        """Measure the metrics of a part over some batches, into those of the position.

        Args:
            load: sets the weights, after callbacks may have changed them; None: those of this moment, or their averages.
        """
        self.average_statistics()
        self.module.begin(part)
        self.module.take()
        heartbeat.enter("validation" if part == "val" else part)
        whole, last = self.loader.evaluation(part, batches)
        iterator = iter(whole)
        self.others.on_test_begin()
        averaged = (load or self.module.swap_averages)()
        for number in range(batches):
            self.others.on_test_batch_begin(number)
            if last is not None and number == batches - 1:
                self.module.test_last(next(iter(last)))
            else:
                self.module.test_function(iterator)
            self.on_test_batch_end(number)
            for other in self.others.callbacks:  # the list itself would read the logs
                other.on_test_batch_end(number, BatchLogs(self.module, part))
            if self.position.preempted:
                break
        fresh = self.reduce(part)
        if part == "val" and self.checkpoints and (averaged or self.others.callbacks):
            self.checkpoints.validated(self.module, self.position)
        if load is None:
            self.module.swap_averages()
        heartbeat.enter("checkpoint" if part == "test" else "step", "" if part == "test" else "data")
        self.others.on_test_end(in_words_of_keras(fresh, part))
        if not self.position.preempted:
            self.position.metrics |= fresh

    def on_train_end(self) -> None:
        """Call the callbacks; weights that they change then are validated and saved, and training would continue from those before."""
        position, weights, strategy = self.position, self.module.weights(), self.module.strategy
        before = (
            {name: np.array(host_value(v)) for name, v in weights.items()} if self.states.callbacks else {}
        )
        self.others.on_train_end(self.epoch_logs)
        if position.preempted or not before:
            return
        now = {name: np.array(host_value(v)) for name, v in self.module.weights().items()}
        if {n: a.shape for n, a in now.items()} != {n: a.shape for n, a in before.items()}:
            self.metrics.progress.note(
                "callbacks changed which weights the model has in on_train_end: checkpoints, test and export are of the model before."
            )
            self.module.weights = lambda: weights  # type: ignore[method-assign]
            return
        if not strategy.sum([float(any(a.tobytes() != before[name].tobytes() for name, a in now.items()))])[
            0
        ]:
            return
        self.metrics.progress.note(
            "callbacks changed the weights in on_train_end: these are validated, saved and tested."
        )
        strategy.from_rank_0(list(weights.values()))
        if self.plan.val_batches:
            self.evaluate("val", self.plan.val_batches, lambda: None)
        elif self.checkpoints:
            self.checkpoints.validated(self.module, position)
        for name, variable in weights.items():
            variable.assign(before[name])
        if not position.preempted:
            metrics = {name: v for name, v in position.metrics.items() if name.startswith("val/")}
            self.metrics.write(position.step, max(0, position.epoch - 1), metrics)
            self.save(self.value_of(position.metrics, bool(metrics)))

    def reduce(self, part: str) -> dict[str, float]:
        """Metrics and efficiency, over all ranks, and the agreement to stop; all must call it at the same step."""
        requests = [
            float(self.stop.requested is not None),
            float(self.checkpoints is not None and self.observers.requests_checkpoint()),
            float(bool(self.module.model.stop_training)),
            *heartbeat.efficiency.numbers(),
            self.calls.number() / self.module.strategy.processes,
        ]
        reduced = self.module.strategy.sum([*self.module.take(), *requests])
        *sums, to_stop, to_save, to_end, whole, waited, seconds = reduced
        heartbeat.efficiency.agree([whole, waited])
        self.calls.agree(seconds)
        self.position.preempted |= to_stop > 0
        self.save_requested = to_save > 0
        self.position.ended |= to_end > 0
        self.units = self.module.units(sums)
        return self.module.report(part, sums)

    def look_at_flag(self) -> None:
        """A single process needs no agreement to stop."""
        if self.module.strategy.processes == 1:
            self.position.preempted |= self.stop.requested is not None
            self.save_requested = self.observers.requests_checkpoint()

    def look_at_others(self, agree: bool = False) -> None:
        """Whether a callback of Keras' has ended the training; several processes agree on it when they reduce anyway.

        Args:
            agree: all processes are here.
        """
        asked = float(bool(self.module.model.stop_training))
        if agree and self.module.strategy.processes > 1 and self.states.callbacks:
            asked = self.module.strategy.sum([asked])[0]
        if agree or self.module.strategy.processes == 1:
            self.position.ended |= asked > 0

    def follow(self) -> None:
        """Let the step train what is trainable now; all processes call it, and compare it."""
        refuse_different_layers(self.module)
        if self.module.follow():
            self.calls.compiles()

    def average_statistics(self) -> None:
        """Moving statistics are linear in the batches, so averaging them late gives the same values."""
        self.module.strategy.average_variables(self.module.moving_statistics())

    def save(self, value: float | None = None) -> None:
        """Write a checkpoint; `value` is the newly measured one of `checkpoint.monitor`."""
        self.average_statistics()
        self.save_requested = False
        counted = self.module.counted()
        with heartbeat.within("checkpoint"):
            began = time.monotonic()
            if self.checkpoints:
                self.checkpoints.save(self.module, self.position, counted, self.states.save(), value)
            self.observers.after_checkpoint(time.monotonic() - began)


class BatchLogs(UserDict[str, float]):
    """What this process has counted up to a batch: read, which waits for the device, when a callback asks for a number.

    Args:
        part: "train", "val" or "test".
    """

    def __init__(self, module: Module, part: str) -> None:
        self._module, self._part = module, part

    @cached_property
    def data(self) -> dict[str, float]:  # type: ignore[override]
        """The metrics by Keras' names."""
        return in_words_of_keras(self._module.report(self._part, self._module.peek()), self._part)


def in_words_of_keras(metrics: Mapping[str, float], part: str = "") -> dict[str, Any]:
    """Names as Keras' callbacks know them: train/loss is loss, val/loss val_loss; of one `part`, both are loss."""
    named = {}
    for name, value in metrics.items():
        of, _, rest = name.partition("/")
        if rest:
            named[f"val_{rest}" if of == "val" and not part else rest] = value
    return named
