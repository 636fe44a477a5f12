"""Train one rank with Keras, from the configuration to the outcome: data, model, strategy, resume, fit, test."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Literal

import keras

from src.checkpoints.recovery import open_checkpointer
from src.config.schema import Config
from src.data.base import ImageSet, Splits
from src.data.sets import open_splits
from src.data.tf_pipeline import plain_data_errors
from src.distributed.layout import running_strategy
from src.distributed.topology import Topology
from src.models.keras import build_model
from src.runs.attempts import Outcome, record_first_step
from src.runs.folder import RunDir
from src.runs.ranks import report_weights
from src.tasks import METRIC_NAMES, names
from src.training.keras.callbacks import TrainingCallback
from src.training.keras.checkpoint import StateWriter, restore, restore_weights
from src.training.keras.loaders import evaluation_data, training_data
from src.training.keras.module import Classifier
from src.training.keras.optim import make_optimizer
from src.training.keras.position import Position
from src.training.keras.random_state import part_seeds, seed_everything
from src.training.keras.strategies.base import Strategy
from src.training.keras.strategies.make import make_strategy
from src.training.keras.tensorboard import MetricsWriter
from src.training.plan import Plan, make_plan
from src.training.progress import Progress
from src.training.resuming import other_devices, resuming_at
from src.training.stop import Stop

POLICIES = {"32": "float32", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}
"""Keras' names of `trainer.precision`."""


def train(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """Train in the run folder, from its newest checkpoint if it has one, and test the best weights. Every rank calls it.

    Args:
        topology: which rank this process is.
        stop: its flag ends the training after the current step, with a checkpoint.

    Raises:
        ConfigError, DataError, CheckpointError: what can't be trained, before training begins or at the damaged sample.
    """
    # one rank alone may have several devices
    name, devices = running_strategy(config, topology)
    strategy = make_strategy(name, config, topology, devices)
    with strategy.explaining_lost_ranks(), plain_data_errors():
        return train_and_test(strategy, config, run, topology, stop)


def train_and_test(
    strategy: Strategy, config: Config, run: RunDir, topology: Topology, stop: Stop
) -> Outcome:
    """`train`, when the devices are chosen and the ranks know each other."""
    keras.utils.clear_session()  # layer names, and so the paths of variables, count from the start
    seed_everything(config.seed)
    splits = open_splits(config.data, config.seed)
    plan = make_plan(config, len(splits.train), len(splits.val), len(splits.test), strategy.replicas)
    model = make_model(config, plan, strategy, splits)
    writes = strategy.rank == 0 and not config.trainer.fast_dev_run
    checkpointer = open_checkpointer(config.checkpoint, run) if writes else None
    newest = checkpointer.store.newest_good() if checkpointer else None
    if checkpointer:
        record_first_step(run, newest.step if newest else 0)
    position, before = restore(newest, model) if newest else (Position(), strategy.replicas)
    position = broadcast_state(position, model)
    part_seeds(model)
    if checkpointer:
        run.steps_done = lambda: position.step
    kind = config.monitor.progress if strategy.rank == 0 else "none"
    with checkpointer or nullcontext(), Progress(kind, plan, strategy.replicas) as progress:
        if newest:
            progress.note(resuming_at(position.step, plan.total_steps))
        if before != strategy.replicas:
            progress.note(other_devices(before, strategy.replicas))
        metrics = MetricsWriter(
            config, run, progress, position.step, checkpointer.events if checkpointer else None
        )
        checkpoints = StateWriter(checkpointer) if checkpointer else None
        validation = partial(evaluation_data, config, strategy, splits.val, plan.val_batches)
        callback = TrainingCallback(config, plan, position, model, metrics, checkpoints, stop, validation)
        fit(callback, splits.train)
        if config.monitor.ranks:
            weights = (v.numpy().tobytes() for v in model.trainable_variables)
            report_weights(run, topology, weights)
        if checkpointer:
            checkpointer.finish()
            newest = checkpointer.newest or newest
        if not position.preempted and plan.test_batches:
            test(callback, splits.test)
    return outcome(position, str(newest.path) if newest else None)


def outcome(position: Position, checkpoint: str | None) -> Outcome:
    """Where the run stands now; `checkpoint` is the folder of the newest one."""
    metrics = {k: v for k, v in position.metrics.items() if k in METRIC_NAMES}  # without the learning rate
    state: Literal["completed", "preempted"] = "preempted" if position.preempted else "completed"
    return Outcome(state, position.epoch, position.step, metrics, checkpoint)


def make_model(config: Config, plan: Plan, strategy: Strategy, splits: Splits) -> Classifier:
    """Model and optimizer, all variables created and the same on all ranks."""
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        network = build_model(config.model, splits.train.shape, splits.train.classes)
        model = Classifier(network, strategy, plan.accumulate)
        model.compile(make_optimizer(config, plan, strategy.replicas), jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        strategy.prepare(model.optimizer)
    return model


def broadcast_state(position: Position, model: Classifier) -> Position:
    """Give all ranks rank 0's variables; returns rank 0's position."""
    strategy = model.strategy
    strategy.from_rank_0([*model.variables, *model.optimizer.variables])
    numbers = position.numbers()
    agreed = strategy.sum(numbers if strategy.rank == 0 else [0.0] * len(numbers))
    return Position.from_numbers(agreed, position.metrics)


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Layers made within the block compute in this precision; nothing else changes."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def fit(callback: TrainingCallback, split: ImageSet) -> None:
    """Train from the callback's position to the end or to a signal, which leaves a checkpoint."""
    config, plan, position, model = callback.config, callback.plan, callback.position, callback.classifier
    if position.pending:
        callback.end_epoch()
    while not (position.preempted or position.over(plan, config.trainer.early_stopping)):
        steps, epochs = next_stretch(position, plan)
        model.fit(
            training_data(config, plan, model.strategy, split, position),
            initial_epoch=position.epoch,
            epochs=position.epoch + epochs,
            steps_per_epoch=steps,
            callbacks=[callback],
            verbose=0,
            shuffle=False,
        )
    if position.preempted:
        callback.save()


def next_stretch(position: Position, plan: Plan) -> tuple[int, int]:
    """Steps per epoch and number of epochs for one call of `fit`: whole epochs, or the rest of one."""
    left = plan.total_steps - position.step
    if position.batch or left < plan.steps_per_epoch:
        return min(left, (plan.train_batches - position.batch) // plan.accumulate), 1
    return plan.steps_per_epoch, left // plan.steps_per_epoch


def test(callback: TrainingCallback, split: ImageSet) -> None:
    """Measure the metrics of the test with the best checkpoint's weights, or the present ones."""
    plan, position, model = callback.plan, callback.position, callback.classifier
    best = callback.checkpoints.checkpointer.store.best() if callback.checkpoints else None
    if best:
        restore_weights(best.path, model)
    model.strategy.from_rank_0(model.variables)
    data = evaluation_data(callback.config, model.strategy, split, plan.test_batches)
    callback.evaluate("test", data, plan.test_batches)
    if position.preempted:
        return
    metrics = {name: position.metrics[name] for name in names("test") if name in position.metrics}
    callback.metrics.write(position.step, max(0, position.epoch - 1), metrics)
