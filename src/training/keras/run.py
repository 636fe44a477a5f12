"""One rank of a Keras run, from the configuration to the outcome."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import src.training.keras  # noqa: F401  # isort: skip  # chooses the backend: before Keras is imported

import keras
import tensorflow as tf

from src.checkpoints.checkpointer import AsyncCheckpointer
from src.checkpoints.recovery import open_checkpointer
from src.config.schema import Config
from src.data.base import ImageSet, Splits
from src.data.sets import open_splits
from src.data.tf_pipeline import plain_data_errors, tf_dataset
from src.distributed.discover import Topology
from src.distributed.fingerprint import fingerprint
from src.models.keras import build_model
from src.runs.attempts import Outcome, record_first_step
from src.runs.folder import RunDir
from src.training.keras.callbacks import Loop
from src.training.keras.checkpoint import Saver, restore, restore_weights
from src.training.keras.module import Classifier
from src.training.keras.optim import make_optimizer
from src.training.keras.position import State
from src.training.keras.strategies.make import Strategy, make_strategy
from src.training.keras.tensorboard import Report
from src.training.plan import Plan, make_plan
from src.training.progress import Progress, other_devices
from src.training.stop import Stop

POLICIES = {"32": "float32", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}
"""Keras' names of `trainer.precision`."""


def train(config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """Train in the run folder from where it stands, then test the best weights. Every rank calls it.

    Raises:
        ConfigError, DataError, CheckpointError: see there.
    """
    strategy = make_strategy(config, topology)
    with strategy.naming_a_lost_rank(), plain_data_errors():
        return train_with(strategy, config, run, topology, stop)


def train_with(strategy: Strategy, config: Config, run: RunDir, topology: Topology, stop: Stop) -> Outcome:
    """`train`, when the devices are chosen and the ranks know each other."""
    keras.utils.clear_session()  # layer names, and so the paths of variables, count from the start
    # tf.config.experimental.enable_op_determinism() stays off: a CPU repeats its bits without it, and with it
    # the threads that read data would take turns. On GPUs it is what to add where every bit counts.
    keras.utils.set_random_seed(config.seed)
    splits = open_splits(config.data, config.seed)
    plan = make_plan(config, len(splits.train), len(splits.val), len(splits.test), strategy.replicas)
    model = make_model(config, plan, strategy, splits)
    writes = strategy.rank == 0 and not config.trainer.fast_dev_run
    publisher = open_checkpointer(config.checkpoint, run) if writes else None
    newest = publisher.store.newest_good() if publisher else None
    if publisher:
        record_first_step(run, newest.step if newest else 0)
    state, before = restore(newest, model) if newest else (State(), strategy.replicas)
    state = shared(state, model)
    if publisher:
        run.steps_done = lambda: state.step
    kind = config.monitor.progress if strategy.rank == 0 else "none"
    with publisher or nullcontext(), Progress(kind, plan, strategy.replicas) as progress:
        if newest:
            progress.note(f"going on from step {state.step} of {plan.total_steps}")
        if before != strategy.replicas:
            progress.note(other_devices(before, strategy.replicas))
        report = Report(config, run, progress, state.step, publisher.events if publisher else None)
        saver = Saver(publisher) if publisher else None
        validation = partial(evaluation_data, config, strategy, splits.val, plan.val_batches)
        loop = Loop(config, plan, state, model, report, saver, stop, validation)
        fit(config, plan, strategy, model, loop, splits.train)
        if config.monitor.ranks:
            weights = (v.numpy().tobytes() for v in model.trainable_variables)
            print(fingerprint(topology, weights), end="", flush=True)
        if publisher:
            publisher.finish()
            newest = publisher.newest or newest
        if not state.preempted and plan.test_batches:
            test(loop, publisher, evaluation_data(config, strategy, splits.test, plan.test_batches))
    return outcome(state, str(newest.path) if newest else None)


def outcome(state: State, checkpoint: str | None) -> Outcome:
    """Where the run stands now; `checkpoint` is the folder of the newest one."""
    metrics = {k: v for k, v in state.metrics.items() if "/" in k}  # the learning rate is none
    return Outcome(
        "preempted" if state.preempted else "completed", state.epoch, state.step, metrics, checkpoint
    )


def make_model(config: Config, plan: Plan, strategy: Strategy, splits: Splits) -> Classifier:
    """Model and optimizer, all variables created and the same on all ranks."""
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        network = build_model(config.model, splits.train.shape, splits.train.classes)
        model = Classifier(network, strategy, plan.accumulate)
        model.compile(make_optimizer(config, plan, strategy.replicas), jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        strategy.prepare(model.optimizer)
    return model


def shared(state: State, model: Classifier) -> State:
    """Rank 0's state and variables, on all ranks; only the seeds of dropout differ between replicas."""
    strategy = model.strategy
    strategy.from_rank_0([*model.variables, *model.optimizer.variables])
    numbers = state.numbers()
    agreed = strategy.sum(numbers if strategy.rank == 0 else [0.0] * len(numbers))
    for seed in (v for v in model.variables if v.name == "seed_generator_state"):
        local = strategy.local_values(seed)
        for number, value in enumerate(local):
            value.assign_add(tf.constant([strategy.rank * len(local) + number, 0], value.dtype))
    return State.from_numbers(agreed, state.metrics)


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Layers made within the block compute in this precision; nothing else changes."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def fit(
    config: Config, plan: Plan, strategy: Strategy, model: Classifier, loop: Loop, data: ImageSet
) -> None:
    """Train from the state's position to the end, or to a signal; then a checkpoint says where it stopped."""
    state = loop.state
    if state.pending:
        loop.end_epoch()
    while not (state.preempted or state.over(plan, config.trainer.early_stopping)):
        steps, epochs = next_stretch(state, plan)
        model.fit(
            training_data(config, plan, strategy, data, state),
            initial_epoch=state.epoch,
            epochs=state.epoch + epochs,
            steps_per_epoch=steps,
            callbacks=[loop],
            verbose=0,
            shuffle=False,
        )
    if state.preempted:
        loop.save()


def next_stretch(state: State, plan: Plan) -> tuple[int, int]:
    """Steps per epoch and number of epochs for one call of `fit`: whole epochs, or what is left of one."""
    left = plan.total_steps - state.step
    if state.batch or left < plan.steps_per_epoch:
        return min(left, (plan.train_batches - state.batch) // plan.accumulate), 1
    return plan.steps_per_epoch, left // plan.steps_per_epoch


def training_data(
    config: Config, plan: Plan, strategy: Strategy, data: ImageSet, state: State
) -> tf.data.Dataset:
    """Endless batches from the state's position on; stacks of them where gradients are accumulated."""

    def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
        batches = tf_dataset(
            data,
            batch_size=config.data.batch_size,
            seed=config.seed,
            train=True,
            rank=rank,
            world_size=world_size,
            workers=config.data.workers,
            start_epoch=state.epoch,
            start_step=state.batch,
            limit_batches=plan.train_batches,
        )
        return batches if plan.accumulate == 1 else batches.batch(plan.accumulate, drop_remainder=True)

    return strategy.dataset(of_rank)


def evaluation_data(config: Config, strategy: Strategy, data: ImageSet, limit: int) -> tf.data.Dataset:
    """The first `limit` batches in their own order."""

    def of_rank(rank: int, world_size: int) -> tf.data.Dataset:
        return tf_dataset(
            data,
            batch_size=config.data.batch_size,
            seed=config.seed,
            train=False,
            rank=rank,
            world_size=world_size,
            workers=config.data.workers,
            epochs=1,
            limit_batches=limit,
        )

    return strategy.dataset(of_rank)


def test(loop: Loop, publisher: AsyncCheckpointer | None, data: tf.data.Dataset) -> None:
    """Measure `test/loss` and `test/acc` with the best checkpoint's weights, or the present ones."""
    strategy = loop.classifier.strategy
    best = publisher.store.best() if publisher else None
    if best:
        restore_weights(best.path, loop.classifier)
    strategy.from_rank_0(loop.classifier.variables)
    loop.evaluate("test", data, loop.plan.test_batches)
    if loop.state.preempted:
        return
    metrics = {name: value for name, value in loop.state.metrics.items() if name.startswith("test/")}
    loop.report.write(loop.state.step, max(0, loop.state.epoch - 1), metrics)
