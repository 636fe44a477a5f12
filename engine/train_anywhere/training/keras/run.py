"""Train one rank with Keras, from the configuration to the outcome: data, model, strategy, resume, fit, test."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import keras
import tensorflow as tf

from train_anywhere.checkpoints.checkpointer import NoCheckpointer
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.checks.monitors import judged_by
from train_anywhere.config.instantiate import instantiate, refusals
from train_anywhere.config.schema import Config
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.tf.pipeline import plain_data_errors
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank
from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.rank_reports import report_weights
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.tasks import Task
from train_anywhere.training.keras.batches import TaskLoader
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.checkpoint.random_state import part_seeds, seed_everything
from train_anywhere.training.keras.checkpoint.state import (
    RAW,
    StateWriter,
    read_rest,
    restore,
    restore_weights,
)
from train_anywhere.training.keras.dropin.model import open_dropin
from train_anywhere.training.keras.dropin.user_callbacks import make_callbacks
from train_anywhere.training.keras.initial import begin_with
from train_anywhere.training.keras.loop.agreement import refuse_different_weights
from train_anywhere.training.keras.loop.callbacks import Loader, TrainingCallback
from train_anywhere.training.keras.loop.epochs import fit
from train_anywhere.training.keras.loop.tensorboard import MetricsWriter
from train_anywhere.training.keras.module import Module, TaskModule
from train_anywhere.training.keras.native import POLICIES, dtype_policy, open_native
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.keras.strategies.choose import make_strategy
from train_anywhere.training.plan import Plan, validation_notes
from train_anywhere.training.reporting.peak import peak
from train_anywhere.training.reporting.progress import Progress
from train_anywhere.training.resuming import other_devices, refuse_other_framework, resuming_at
from train_anywhere.training.stop import Stop


def train(
    config: Config, run: RunDir, topology: Topology, stop: Stop, recorder: RunRecorder | None = None
) -> Outcome:
    """Train in the run folder, from its newest checkpoint if it has one, and test the best weights. Every rank calls it.

    Args:
        topology: which rank this process is.
        stop: its flag ends the training after the current step, with a checkpoint.
        recorder: of rank 0.

    Raises:
        ConfigError, DataError, CheckpointError: what can't be trained, before training begins or at the damaged sample.
    """
    tf.config.experimental.enable_tensor_float_32_execution(config.trainer.tf32)
    # one rank alone may have several devices
    name, devices = running_strategy(config, topology)
    heartbeat.at("meeting")
    strategy = make_strategy(name, config, topology, devices)
    stop.take_back()  # TensorFlow's server of several processes takes SIGTERM, and only tells its own listeners
    heartbeat.at("preparing")
    with strategy.explaining_lost_ranks(), plain_data_errors():
        return train_and_test(strategy, config, run, topology, stop, recorder)


def train_and_test(
    strategy: Strategy,
    config: Config,
    run: RunDir,
    topology: Topology,
    stop: Stop,
    recorder: RunRecorder | None = None,
) -> Outcome:
    """`train`, when the devices are chosen and the ranks know each other."""
    keras.utils.clear_session()  # layer names, and so the paths of variables, count from the start
    seed_everything(config.seed)
    module, loader, plan = open_task(config, strategy)
    writes = strategy.rank == 0 and not config.trainer.fast_dev_run
    checkpointer = open_checkpointer(config.checkpoint, run) if writes else NoCheckpointer()
    newest = checkpointer.newest_good(Features.of(config).resume_until(run))
    if writes and recorder:
        recorder.first_step(newest.step if newest else 0)
    position, rest = restore_or_begin(config, module, newest)
    if writes and recorder:
        recorder.steps_done = lambda: position.step
    kind = config.monitor.progress if strategy.rank == 0 else "none"
    live, least = run.path if writes else None, least_seconds(module, config)
    display = Progress(kind, plan, strategy.replicas, module.unit, module.counts_units, least, live)
    display.newest = lambda: checkpointer.newest
    with checkpointer, display as progress:
        for line in notes_at_start(config, plan, strategy, newest, rest):
            progress.note(line)
        others, states = make_callbacks(config, module, plan, position)
        for note in module.notes:
            progress.note(note)
        metrics = MetricsWriter(config, run, progress, position.step, checkpointer.events, module.known)
        checkpoints = None if isinstance(checkpointer, NoCheckpointer) else StateWriter(checkpointer)
        callback = TrainingCallback(
            config, plan, position, module, loader, metrics, checkpoints, stop, others, states
        )
        callback.restored = rest
        callback.observers = observers_of(module, loader, plan, config, run)
        with metrics.finishing(position):
            fit_and_check(callback)
            heartbeat.enter("checkpoint")  # the last one is published, and weights are compared
            compare_weights(module, config, run, topology)
            checkpointer.finish()
            newest = checkpointer.newest or newest
            if not position.preempted and plan.test_batches:
                test(callback, newest)
        heartbeat.enter("end")
    return outcome(position, str(newest.path) if newest else None, progress.throughput.mean(), module.unit)


def restore_or_begin(
    config: Config, module: Module, newest: SavedCheckpoint | None
) -> tuple[Position, dict[str, Any] | None]:
    """Restore the newest checkpoint, or begin with the first weights; all ranks call it.

    Args:
        newest: on rank 0.

    Returns:
        Where the run stands, and what state.json of the checkpoint holds; None without one.
    """
    strategy = module.strategy
    if newest:
        refuse_other_framework(newest, "keras")
    elif strategy.rank == 0:
        begin_with(
            config, module, partial(print, flush=True) if config.monitor.progress != "none" else _silent
        )
    rest = strategy.shared(read_rest(newest.path / "state.json") if newest else None)
    module.restore_optimizers(rest["built"] if rest else ())
    position = restore(newest, module, rest) if newest else Position()
    position = broadcast_state(position, module)
    part_seeds(module)
    return position, rest


def _silent(line: str) -> None:
    """Print nothing."""


def notes_at_start(
    config: Config,
    plan: Plan,
    strategy: Strategy,
    newest: SavedCheckpoint | None,
    rest: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Yield which metric says what is best, and where and on how many devices the run resumes."""
    if line := judged_by(config):
        yield line
    if newest:
        yield resuming_at(newest, config, plan, strategy.replicas)
    if rest and rest["devices"] != strategy.replicas:
        yield other_devices(rest["devices"], strategy.replicas)


def fit_and_check(callback: TrainingCallback) -> None:
    """Train. Raises ProjectError: the steps changed nothing."""
    module, position = callback.module, callback.position
    weights, first = fingerprint(module), position.step
    fit(callback)
    if not position.preempted:
        callback.observers.at_end()
    if position.step > first and weights and fingerprint(module) == weights:
        raise ProjectError(
            f"nothing was trained: {position.step - first} steps changed no weight and called no optimizer; let train_step apply "
            "the gradients (self.optimizer.apply)."
        )


def fingerprint(module: Module) -> list[float]:
    """Return a number for each trained weight and each variable of the optimizers; one counts their steps."""
    variables = [*module.model.trainable_variables, *module.optimizer_state().values()]
    return [float(tf.reduce_sum(tf.abs(tf.cast(tf.convert_to_tensor(v), tf.float64)))) for v in variables]


def observers_of(module: Module, loader: Loader, plan: Plan, config: Config, run: RunDir) -> Observers:
    """Return what features do in the loop of this rank."""
    strategy = module.strategy
    rank = Rank(
        run=run,
        native=isinstance(module, TaskModule),
        first=strategy.rank * (strategy.replicas // strategy.processes),
        devices=strategy.replicas,
        accumulate=plan.accumulate,
        total=strategy.sum,
        keep=loader.keep if isinstance(loader, TaskLoader) else None,
    )
    return Observers(Features.of(config).observers(rank))


def compare_weights(module: Module, config: Config, run: RunDir, topology: Topology) -> None:
    """Say which weights this rank has, if that is asked for; those of ranks or devices that differ are an error."""
    if config.monitor.ranks:
        weights = (v.numpy().tobytes() for v in module.model.trainable_variables)
        report_weights(run, topology, weights)
    refuse_different_weights(module)


def least_seconds(module: Module, config: Config) -> float | None:
    """That a device needs for a token of a network that says its `flops_per_token`; None where its peak is not known."""
    flops, gpus = getattr(module.model, "flops_per_token", None), tf.config.list_physical_devices("GPU")
    if not isinstance(flops, float) or module.unit != "tokens" or not gpus:
        return None
    chip = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "")
    most = peak(chip, config.trainer.precision, config.trainer.tf32)
    return flops / most if most else None


def open_task(config: Config, strategy: Strategy) -> tuple[Module, Loader, Plan]:
    """By the door that `task._target_` asks for: what is trained, where its batches come from, and how many there are.

    Raises:
        ConfigError: the target makes neither a task nor a `keras.Model`.
    """
    splits = open_splits(config.data, "keras", config.seed, Features.of(config).staging)
    named = f"task._target_={config.task.target['keras']}"
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]), refusals(named):
        made = instantiate(config.task, "task", "keras")
    if isinstance(made, Task | keras.Model):
        opened = (open_native if isinstance(made, Task) else open_dropin)(config, strategy, splits, made)
        opened[0].notes += [*splits.notes, *validation_notes(config, opened[2])]
        return opened
    raise ConfigError(
        f"{named} makes a {type(made).__name__}, which is neither a task (a subclass of "
        "train_anywhere.tasks.Task) nor a keras.Model; with framework=keras it has to be one of them."
    )


def outcome(position: Position, checkpoint: str | None, rate: float | None, unit: str) -> Outcome:
    """Where the run stands now; `checkpoint` is the folder of the newest one, `rate` how many of `unit` were trained in a second."""
    metrics = {k: v for k, v in position.metrics.items() if k != "lr"}
    state: Literal["completed", "preempted"] = "preempted" if position.preempted else "completed"
    return Outcome(state, position.epoch, position.step, metrics, checkpoint, rate, unit)


def broadcast_state(position: Position, module: Module) -> Position:
    """Give all ranks rank 0's variables; returns rank 0's position."""
    strategy = module.strategy
    strategy.from_rank_0([*module.weights().values(), *module.optimizer_state().values()])
    numbers = position.numbers()
    agreed = strategy.sum(numbers if strategy.rank == 0 else [0.0] * len(numbers))
    return Position.from_numbers(agreed, position.metrics)


def test(callback: TrainingCallback, newest: SavedCheckpoint | None) -> None:
    """Measure the metrics of the test with the weights of the best checkpoint or the newest one, whatever callbacks do then."""
    plan, position, module = callback.plan, callback.position, callback.module
    best = callback.checkpoints.checkpointer.store.best() if callback.checkpoints else None
    chosen = best or newest

    def load() -> None:
        if chosen and (best or callback.others.callbacks or (chosen.path / RAW).exists()):
            restore_weights(chosen.path, module.weights())
        elif not chosen:
            module.swap_averages()
        module.strategy.from_rank_0(list(module.weights().values()))

    callback.evaluate("test", plan.test_batches, load)
    if position.preempted:
        return
    metrics = {name: value for name, value in position.metrics.items() if name.startswith("test/")}
    callback.metrics.write(position.step, max(0, position.epoch - 1), metrics)
