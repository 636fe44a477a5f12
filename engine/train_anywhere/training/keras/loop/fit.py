"""The one call of `fit` of a process, and the calls of `evaluate` around it."""

from collections.abc import Callable

import keras

from train_anywhere.training.keras.checkpoint import keep_random_state
from train_anywhere.training.keras.loop.callbacks import TrainingCallback
from train_anywhere.training.keras.loop.step_work import Stopped


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
    if data["steps_per_epoch"]:  # `fit` would train more steps than these in the last call of an epoch
        module.model.steps_per_execution = divisor(plan.steps_per_epoch, module.model.steps_per_execution)
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


def check_validation(callback: TrainingCallback) -> None:
    """Run `trainer.num_sanity_val_steps` validation batches, and forget that they ran."""
    trainer, module, known = callback.config.trainer, callback.module, callback.plan.val_batches
    count = known if trainer.num_sanity_val_steps == -1 else min(trainer.num_sanity_val_steps, known)
    if not count or trainer.fast_dev_run:
        return
    callback.heartbeat.enter("validation")
    with keep_random_state(module):
        beat = keras.callbacks.LambdaCallback(
            on_test_batch_end=lambda *_, **__: callback.heartbeat.evaluated_batch()
        )
        module.model.evaluate(**callback.loader.evaluation("val", count), callbacks=[beat], verbose=0)
        module.report("val", module.strategy.sum(module.take()))


def evaluate(callback: TrainingCallback, load: Callable[[], object]) -> None:
    """Measure the test metrics with the weights that `load` loads, after callbacks may have changed them."""
    callback.split, callback.load = "test", load
    data = callback.loader.evaluation("test", callback.plan.test_batches)
    try:
        callback.module.model.evaluate(**data, callbacks=callback, verbose=0)
    except Stopped:
        return
