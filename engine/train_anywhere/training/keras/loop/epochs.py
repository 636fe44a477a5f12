"""The loop over epochs and steps, and the end of an epoch and of training."""

import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from train_anywhere.errors import RanksDifferError, listed
from train_anywhere.training.early_stopping import checkpoint_score, monitored_value
from train_anywhere.training.keras.batches import Loader
from train_anywhere.training.keras.checkpoint import host_value, keep_random_state
from train_anywhere.training.keras.loop.callbacks import (
    BatchLogs,
    TrainingCallback,
    to_keras_names,
)
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import is_multiple, validation_due


def end_epoch(callback: TrainingCallback) -> None:
    """Validate, apply early stopping and save a checkpoint, also in a run that resumes here.

    This is the end of an epoch, or a validation within it; after that one, the metrics of training continue to count.
    """
    position, trainer, epoch = callback.position, callback.config.trainer, callback.position.epoch
    splits, within = ["train"], not (position.ended or position.ends_epoch(callback.plan))
    due = validation_due(trainer, callback.plan, epoch, position.batch, position.step)
    every = trainer.check_val_every_n_epoch or 1
    # as `validation_freq` of `fit`
    listed = is_multiple(epoch + 1, every) or epoch + 1 == callback.plan.max_epochs
    ends = position.timed_out or (position.ended and listed)
    if due or (ends and callback.plan.val_batches):
        counted = callback.module.metric_state() if within else {}
        evaluate(callback, "val", callback.plan.val_batches)
        if within:
            callback.module.continue_metrics(counted)
        if position.preempted:
            return
        splits.append("val")
    metrics = {k: v for k, v in position.metrics.items() if k == "lr" or k.partition("/")[0] in splits}
    measured = "val" in splits or not callback.plan.val_batches
    if measured and trainer.early_stopping.patience is not None:
        value = monitored_value(metrics, trainer.early_stopping.monitor, "trainer.early_stopping.monitor")
        position.patience.update(value, trainer.early_stopping)
        if (epoch if within else epoch + 1) < (trainer.min_epochs or 0):
            position.patience.postpone(trainer.early_stopping)
    patience_over = position.patience.should_stop(trainer.early_stopping)
    closes = not within or position.timed_out or position.ended or patience_over
    metrics |= callback.call_epoch_end(epoch, metrics, closes)
    callback.metrics.write(position.step, epoch, metrics)
    callback.metrics.progress.end_epoch(epoch, metrics, position.batch - 1)
    if patience_over:
        callback.metrics.progress.note(position.patience.describe(trainer.early_stopping))
    callback.observers.after_validation(position.step, metrics)
    if closes:
        callback.check_stop_training(agree=True)
        if is_multiple(epoch + 1, callback.config.monitor.compare_weights_every_n_epochs):
            refuse_different_weights(callback.module)
    position.close_epoch(callback.plan)
    over = position.is_complete(callback.plan, trainer.early_stopping)
    if over or callback.is_due() or is_multiple(epoch + 1, callback.config.checkpoint.every_n_epochs):
        callback.save(checkpoint_value(callback, metrics, closes and "val" in splits))


def checkpoint_value(
    callback: TrainingCallback, metrics: Mapping[str, float], validated: bool
) -> float | None:
    """Return the value of `checkpoint.monitor`. Raises ConfigError if no metric has the name."""
    monitor = callback.config.checkpoint.monitor
    if monitor and (validated or monitor.startswith("train/")):
        monitored_value(metrics, monitor, "checkpoint.monitor")
    return checkpoint_score(metrics, monitor) if monitor else None


def evaluate(
    callback: TrainingCallback, split: str, batches: int, load: Callable[[], object] | None = None
) -> None:
    """Measure the metrics of the first batches of a split, and store them in the position.

    `load` loads the weights after callbacks may have changed them; None: the current ones, or their moving averages.
    """
    callback.average_statistics()
    callback.module.reset_metrics()
    callback.module.take()
    callback.heartbeat.enter("validation" if split == "val" else split)
    test_batch = make_test(callback.module, callback.loader, split, batches)
    callback.module.model.stop_evaluating = False
    callback.user_callbacks.on_test_begin()
    averaged = (load or callback.module.swap_averages)()
    for number in range(batches):
        callback.user_callbacks.on_test_batch_begin(number)
        test_batch(number)
        callback.on_test_batch_end(number)
        callback.call_each("on_test_batch_end", number, BatchLogs(callback.module, split))
        if callback.position.preempted or callback.module.model.stop_evaluating:
            break
    metrics = callback.reduce(split)
    if split == "val" and callback.checkpoints and (averaged or callback.user_callbacks.callbacks):
        callback.checkpoints.keep_validated(callback.module, callback.position)
    if load is None:
        callback.module.swap_averages()
    callback.heartbeat.enter("checkpoint" if split == "test" else "step", "" if split == "test" else "data")
    callback.user_callbacks.on_test_end(to_keras_names(metrics, split))
    if not callback.position.preempted:
        callback.position.metrics |= metrics


def make_test(module: Module, loader: Loader, split: str, batches: int) -> Callable[[int], None]:
    """Return a function that counts the metrics of the batch with the given number."""
    whole, last = loader.evaluation(split, batches)
    iterator = iter(whole)

    def test(number: int) -> None:
        if last is not None and number == batches - 1:
            module.test_last(next(iter(last)))
        else:
            module.test_function(iterator)

    return test


def end_training(callback: TrainingCallback) -> None:
    """Call the callbacks; validate and save weights that they change."""
    position, weights, strategy = callback.position, callback.module.weights(), callback.module.strategy
    known = weights if callback.states.callbacks else {}
    before = {name: np.array(host_value(v)) for name, v in known.items()}
    callback.user_callbacks.on_train_end(callback.epoch_logs)
    if position.preempted or not before:
        return
    now = {name: np.array(host_value(v)) for name, v in callback.module.weights().items()}
    if {n: a.shape for n, a in now.items()} != {n: a.shape for n, a in before.items()}:
        callback.metrics.progress.note(
            "callbacks added or removed weights of the model in on_train_end: checkpoint, test and export use the model before that."
        )
        callback.module.keep_weights(weights)
        return
    changed = any(array.tobytes() != before[name].tobytes() for name, array in now.items())
    if not any(strategy.sum([float(changed)])):
        return
    callback.metrics.progress.note(
        "callbacks changed the weights in on_train_end: the new weights are validated, saved and tested."
    )
    strategy.broadcast_variables(list(weights.values()))
    if callback.plan.val_batches:
        evaluate(callback, "val", callback.plan.val_batches, lambda: None)
    elif callback.checkpoints:
        callback.checkpoints.keep_validated(callback.module, position)
    for name, variable in weights.items():
        variable.assign(before[name])
    if not position.preempted:
        metrics = {name: v for name, v in position.metrics.items() if name.startswith("val/")}
        callback.metrics.write(position.step, position.last_epoch, metrics)
        callback.save(checkpoint_value(callback, position.metrics | callback.added, bool(metrics)))


def fit(callback: TrainingCallback) -> None:
    """Train from the callback's position to the end of the run, or until a signal."""
    position, plan, module = callback.position, callback.plan, callback.module
    trainer = callback.config.trainer
    if position.epoch < (trainer.min_epochs or 0):  # raised since the checkpoint
        position.patience.postpone(trainer.early_stopping)
    if not position.step:
        check_validation(callback)
    callback.metrics.progress.start_training(position.step)
    callback.on_train_begin()
    callback.heartbeat.enter("step", "data")
    callback.timer.start()
    position.timed_out = callback.timer.was_over
    if position.pending:
        end_epoch(callback)
    batches = None
    while not (position.preempted or position.is_complete(plan, trainer.early_stopping)):
        batches = batches or iter(callback.loader.training(plan, position))
        if position.batch == 0:
            module.reset_metrics()
        train_epoch(callback, batches)
    if position.preempted:
        callback.save()
    callback.timer.stop()
    end_training(callback)


def check_validation(callback: TrainingCallback) -> None:
    """Run `trainer.num_sanity_val_steps` validation batches, and forget that they ran."""
    trainer, module, known = callback.config.trainer, callback.module, callback.plan.val_batches
    count = known if trainer.num_sanity_val_steps == -1 else min(trainer.num_sanity_val_steps, known)
    if not count or trainer.fast_dev_run:
        return
    callback.heartbeat.enter("validation")
    with keep_random_state(module):
        test_batch = make_test(module, callback.loader, "val", count)
        for number in range(count):
            test_batch(number)
            callback.heartbeat.evaluated_batch()
        module.report("val", module.strategy.sum(module.take()))
        module.reset_metrics()


def train_epoch(callback: TrainingCallback, batches: Iterator[object]) -> None:
    """Train the rest of an epoch, or of the run."""
    epoch, user_callbacks = callback.position.epoch, callback.user_callbacks
    if callback.position.batch == 0:  # not if the run resumes within the epoch
        user_callbacks.on_epoch_begin(epoch)
    callback.update_trainable()
    pace = callback.module.strategy.pace
    pace.start()
    plan = callback.plan
    number = callback.position.batch // plan.accumulate
    end = min(plan.steps_per_epoch, number + plan.total_steps - callback.position.step)
    while number < end:
        position = callback.position
        callback.call_each("on_train_batch_begin", number, {})
        if callback.has_batch_hooks:
            with pace.agreement():
                callback.update_trainable()
        pace.ask()
        callback.module.train_function(batches)
        callback.heartbeat.computed(pace.seconds(callback.heartbeat))
        callback.on_train_batch_end()
        callback.heartbeat.trained_batch(position.step)
        pace.start()
        callback.call_each("on_train_batch_end", number, callback.batch_logs)
        number += 1
        callback.check_stop_training()
        if position.pending and number < end and not position.leaves:
            end_epoch(callback)
            pace.start()
        if position.leaves or position.patience.should_stop(callback.config.trainer.early_stopping):
            break
    if callback.position.pending and not callback.position.preempted:
        end_epoch(callback)


PARTS = 4
"""Number of 16-bit integers that a checksum is sent as; any float type holds them exactly."""


def refuse_different_weights(module: Module) -> None:
    """Raise RanksDifferError if replicas have different weights. All processes call this."""
    strategy = module.strategy
    if strategy.replicas == 1:
        return
    variables = [v for v in module.weights().values() if v.name != "seed_generator_state"]
    strategy.average_variables(module.moving_statistics())
    values = [strategy.local_values(v) for v in variables]
    here = len(strategy.local_values(variables[0]))
    numbers = [0.0] * (strategy.replicas * PARTS)
    for replica in range(here):
        digest = hashlib.sha256()
        for copies in values:
            digest.update(copies[min(replica, len(copies) - 1)].numpy().tobytes())
        first = (strategy.rank * here + replica) * PARTS
        numbers[first : first + PARTS] = np.frombuffer(digest.digest()[: 2 * PARTS], ">u2").tolist()
    agreed = strategy.sum(numbers)
    sums = [tuple(agreed[n : n + PARTS]) for n in range(0, len(agreed), PARTS)]
    what = "rank" if strategy.processes > 1 else "device"
    if others := [str(n) for n, one in enumerate(sums) if one != sums[0]]:
        raise RanksDifferError(
            f"the weights of {what}{'s' if len(others) > 1 else ''} {listed(others)} of {len(sums)} are not those of {what} 0: "
            f"the model changes them separately on each {what} (weights that are changed without an optimizer, or a state that depends "
            f"on the rows); the checkpoints hold those of {what} 0."
        )
