"""The loop around the steps: epochs, and the events that Keras' own callbacks expect."""

import time
from collections.abc import Iterator

import tensorflow as tf

from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.plan import Plan


def fit(callback: TrainingCallback) -> None:
    """Train from the callback's position to the end or to a signal, which leaves a checkpoint."""
    position, plan, module = callback.position, callback.plan, callback.module
    callback.metrics.progress.begin()
    callback.on_train_begin()
    heartbeat.enter("step", "data")
    if position.pending:
        callback.end_epoch()
    batches = None
    while not (position.preempted or position.over(plan, callback.config.trainer.early_stopping)):
        batches = batches or iter(callback.loader.training(plan, position))
        if position.batch == 0:
            module.begin("train")
        train_epoch(callback, batches)
    if position.preempted or (position.ended and position.batch):
        callback.save()
    callback.on_train_end()


def train_epoch(callback: TrainingCallback, batches: Iterator[object]) -> None:
    """The rest of an epoch, or of the run."""
    epoch, others = callback.position.epoch, callback.others
    if callback.position.batch == 0:  # a run that resumes within the epoch has seen it begin
        others.on_epoch_begin(epoch)
    callback.follow()
    pace = callback.module.strategy.pace
    pace.begin()
    number, end = remaining(callback.position, callback.plan)
    while number < end:
        count = callback.calls.next(callback.position.step, end - number)
        if callback.calls.each:  # else nobody listens, and Keras would start a thread to tell nobody
            others.on_train_batch_begin(number)
            if callback.hooked:
                with pace.agreement():
                    callback.follow()
        pace.ask()
        began = time.monotonic()
        callback.module.train_function(batches, tf.constant(count))
        callback.calls.took(time.monotonic() - began, count)
        heartbeat.computed(pace.seconds(count))
        number += count
        callback.on_train_batch_end(number - 1, count)
        heartbeat.trained_batch(callback.position.step, count)
        pace.begin()
        if callback.calls.each:
            for other in others.callbacks:  # the list itself would read the logs
                other.on_train_batch_end(number - 1, callback.batch_logs)
        callback.look_at_others()
        if callback.position.preempted or callback.position.ended:
            break
    callback.on_epoch_end(epoch)


def remaining(position: Position, plan: Plan) -> tuple[int, int]:
    """Numbers of the first step of the epoch that is left, and of the one after the last."""
    first = position.batch // plan.accumulate
    return first, min(plan.steps_per_epoch, first + plan.total_steps - position.step)
