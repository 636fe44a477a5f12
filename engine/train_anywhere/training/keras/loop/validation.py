"""The end of an epoch and of training: validation, early stopping, the callbacks of the user, checkpoints."""

from collections.abc import Callable, Mapping

import numpy as np

from train_anywhere.training.early_stopping import checkpoint_score, monitored_value
from train_anywhere.training.keras.checkpoint.state import host_value
from train_anywhere.training.keras.loop.agreement import refuse_different_weights
from train_anywhere.training.keras.loop.callbacks import (
    BatchLogs,
    TrainingCallback,
    from_keras_names,
    to_keras_names,
)
from train_anywhere.training.plan import is_multiple, validation_due


def end_epoch(callback: TrainingCallback) -> None:
    """Validate, apply early stopping and save a checkpoint; a run that was stopped before this resumes here.

    This is the end of an epoch, or a validation within it; after that one, the metrics of training continue to count.
    """
    position, trainer, epoch = callback.position, callback.config.trainer, callback.position.epoch
    splits, within = ["train"], not (position.ended or position.ends_epoch(callback.plan))
    due = validation_due(trainer, callback.plan, epoch, position.batch, position.step)
    every = trainer.check_val_every_n_epoch or 1
    listed = (
        is_multiple(epoch + 1, every) or epoch + 1 == callback.plan.max_epochs
    )  # as `validation_freq` of `fit`
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
    closes = (
        not within
        or position.timed_out
        or position.ended
        or position.patience.should_stop(trainer.early_stopping)
    )
    callback.epoch_logs = to_keras_names(metrics)
    callback.added = _call_epoch_end(callback, epoch) if closes else {}
    metrics |= callback.added
    callback.metrics.write(position.step, epoch, metrics)
    callback.metrics.progress.end_epoch(epoch, metrics, position.batch - 1)
    if position.patience.should_stop(trainer.early_stopping):
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


def _call_epoch_end(callback: TrainingCallback, epoch: int) -> dict[str, float]:
    """Call the callbacks of the user at the end of an epoch, and return the metrics that they add to its logs."""
    logs, known = (
        dict(callback.epoch_logs),
        {*callback.epoch_logs, "learning_rate"},
    )  # Keras adds that one; it is logged as lr
    callback.call_each("on_epoch_end", epoch, logs)
    return from_keras_names({k: v for k, v in logs.items() if k not in known})


def checkpoint_value(
    callback: TrainingCallback, metrics: Mapping[str, float], validated: bool
) -> float | None:
    """Return the value of `checkpoint.monitor`, or None if it was not measured now. Raises ConfigError if no metric has that name."""
    monitor = callback.config.checkpoint.monitor
    if monitor and (validated or monitor.startswith("train/")):
        monitored_value(metrics, monitor, "checkpoint.monitor")
    return checkpoint_score(metrics, monitor) if monitor else None


def evaluate(
    callback: TrainingCallback, split: str, batches: int, load: Callable[[], object] | None = None
) -> None:
    """Measure the metrics of a split, and store them in the position.

    Args:
        callback: the work between training steps.
        split: "val" or "test".
        batches: number of batches.
        load: loads the weights after callbacks may have changed them; None: the current weights, or their moving averages.
    """
    callback.average_statistics()
    callback.module.reset_metrics()
    callback.module.take()
    callback.heartbeat.enter("validation" if split == "val" else split)
    test_batch = make_test(callback, split, batches)
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


def make_test(callback: TrainingCallback, split: str, batches: int) -> Callable[[int], None]:
    """Return a function that counts the metrics of the next of the first `batches` of a split, from its number."""
    whole, last = callback.loader.evaluation(split, batches)
    iterator = iter(whole)

    def test(number: int) -> None:
        if last is not None and number == batches - 1:
            callback.module.test_last(next(iter(last)))
        else:
            callback.module.test_function(iterator)

    return test


def end_training(callback: TrainingCallback) -> None:
    """Call the callbacks; validate and save weights that they change. Training would continue from the weights before."""
    position, weights, strategy = callback.position, callback.module.weights(), callback.module.strategy
    before = (
        {name: np.array(host_value(v)) for name, v in weights.items()} if callback.states.callbacks else {}
    )
    callback.user_callbacks.on_train_end(callback.epoch_logs)
    if position.preempted or not before:
        return
    now = {name: np.array(host_value(v)) for name, v in callback.module.weights().items()}
    if {n: a.shape for n, a in now.items()} != {n: a.shape for n, a in before.items()}:
        callback.metrics.progress.note(
            "callbacks added or removed weights of the model in on_train_end: checkpoint, test and export use the model before that."
        )
        callback.module.weights = lambda: weights  # type: ignore[method-assign]
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
