"""The one call of `fit` of a process, and the calls of `evaluate` around it."""

import math

import keras

from train_anywhere.data.order import random_numbers
from train_anywhere.data.tf.streams import Stream
from train_anywhere.training.keras.checkpoint import SEED_STATE
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.keras.loop.step_work import Stopped

MOST_STEPS = 32
"""The most steps of a call, after which signals and requests are looked at."""


def fit(callback: TrainingCallback) -> None:
    """Train from the callback's position to the end of the run, or until a signal."""
    position, plan, module = callback.position, callback.plan, callback.module
    trainer = callback.config.trainer
    if trainer.is_too_early(position.epoch, position.step):  # raised since the checkpoint
        position.patience.postpone(trainer.early_stopping)
    callback.metrics.progress.start_training(position.step)
    callback.timer.start()
    position.timed_out = callback.timer.was_over
    callback.prepare()
    data = callback.loader.for_fit(plan, position)
    own = module.model.steps_per_execution
    if own == 1:
        module.model.steps_per_execution = choose_steps(callback)
        callback.paced = module.model.steps_per_execution > 1
    elif data["steps_per_epoch"]:  # `fit` would train more steps than these in the last call of an epoch
        module.model.steps_per_execution = divisor(plan.steps_per_epoch, own)
    validation = {}
    if plan.val_batches:
        if not position.step or callback.loader.is_read_again("val"):
            check_validation(callback)
        found = callback.loader.evaluation("val", plan.val_batches)
        validation = {"validation_data": found["x"], "validation_steps": found["steps"]}
    epochs = callback.first_epoch if callback.is_complete() else plan.max_epochs
    try:
        module.model.fit(
            **data,
            **validation,
            epochs=epochs,
            initial_epoch=callback.first_epoch,
            validation_freq=callback.validations,
            callbacks=callback,
            verbose=0,
        )
    except Stopped:
        callback.metrics.progress.heartbeat.enter("checkpoint")


def divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is not above `most`."""
    return next(n for n in range(min(number, most), 0, -1) if number % n == 0)


def choose_steps(callback: TrainingCallback) -> int:
    """Return how many steps one call of the train function makes, if the user's model does not say it.

    It is 1 if a callback looks at batches. Else it divides the epoch and all steps at which metrics, validations or features are due.
    """
    module, plan, trainer = callback.module, callback.plan, callback.config.trainer
    looks = (
        callback.train_hooks
        or callback.test_hooks
        or module.model.run_eagerly
        or trainer.profiler is not None
    )
    endless = any(
        isinstance(data, Stream) and data.length is None for data in callback.loader.splits.values()
    )
    if looks or endless or module.several:
        return 1
    due = [plan.steps_per_epoch, plan.total_steps, trainer.log_every_n_steps]
    due += [plan.val_every] if plan.val_batches else []
    for one in callback.observers.all:
        step: int | None = callback.position.step
        for _ in range(2):
            step = None if step is None else one.next_step(step)
            due += [step] if step else []
    return divisor(math.gcd(*due), MOST_STEPS)


def check_validation(callback: TrainingCallback) -> None:
    """Run `trainer.num_sanity_val_steps` validation batches, and forget that they ran."""
    trainer, module, known = callback.config.trainer, callback.module, callback.plan.val_batches
    count = known if trainer.num_sanity_val_steps == -1 else min(trainer.num_sanity_val_steps, known)
    if not count or trainer.fast_dev_run:
        return
    callback.heartbeat.enter("validation")
    restore_seeds = module.strategy.snapshot(v for v in module.model.variables if v.name == SEED_STATE)
    with random_numbers.preserve():
        beat = keras.callbacks.LambdaCallback(
            on_test_batch_end=lambda *_, **__: callback.heartbeat.evaluated_batch()
        )
        module.model.evaluate(**callback.loader.evaluation("val", count), callbacks=[beat], verbose=0)
        module.report("val", module.strategy.sum(module.take()))
    restore_seeds()
