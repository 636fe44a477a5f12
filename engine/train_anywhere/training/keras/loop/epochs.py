"""The loop over epochs and steps, which calls the hooks of Keras callbacks."""

import time
from collections.abc import Iterator

import tensorflow as tf

from train_anywhere.training.keras.checkpoint.position import Position, keep_random_state
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.keras.loop.validation import end_epoch, end_training, make_test
from train_anywhere.training.plan import Plan, steps_to_validation


def fit(callback: TrainingCallback) -> None:
    """Train from the callback's position to the end of the run, or until a signal, and then save a checkpoint."""
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
    """Run `trainer.num_sanity_val_steps` validation batches without callbacks, and forget their metrics.

    Random numbers are drawn as if this had not run.
    """
    trainer, module, known = callback.config.trainer, callback.module, callback.plan.val_batches
    count = known if trainer.num_sanity_val_steps == -1 else min(trainer.num_sanity_val_steps, known)
    if not count or trainer.fast_dev_run:
        return
    callback.heartbeat.enter("validation")
    with keep_random_state(module):
        test_batch = make_test(callback, "val", count)
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
    number, end = remaining_steps(callback.position, callback.plan)
    while number < end:
        left = steps_to_validation(
            callback.config.trainer, callback.plan, callback.position.batch, callback.position.step
        )
        profile = callback.metrics.progress.profile
        until = profile.steps_left(callback.position.step) if profile else None
        count = callback.calls.next_count(callback.position.step, min(left, end - number, until or left))
        if callback.calls.each:  # else no callback has this hook, and Keras would start a thread for nothing
            user_callbacks.on_train_batch_begin(number)
            if callback.has_shared_hooks:
                with pace.agreement():
                    callback.update_trainable()
        pace.ask()
        start = time.monotonic()
        callback.module.train_function(batches, tf.constant(count))
        callback.calls.add_call(time.monotonic() - start, count)
        callback.heartbeat.computed(pace.seconds(callback.heartbeat, count))
        number += count
        callback.on_train_batch_end(number - 1, count)
        callback.heartbeat.trained_batch(callback.position.step, count)
        pace.start()
        if callback.calls.each:
            callback.call_each("on_train_batch_end", number - 1, callback.batch_logs)
        callback.check_stop_training()
        position = callback.position
        if position.pending and number < end and not position.leaves:
            end_epoch(callback)
            pace.start()
        if position.leaves or position.patience.should_stop(callback.config.trainer.early_stopping):
            break
    if callback.position.pending and not callback.position.preempted:
        end_epoch(callback)


def remaining_steps(position: Position, plan: Plan) -> tuple[int, int]:
    """Return the range of the steps left in the epoch: the number of the first, and of the one after the last."""
    first = position.batch // plan.accumulate
    return first, min(plan.steps_per_epoch, first + plan.total_steps - position.step)
