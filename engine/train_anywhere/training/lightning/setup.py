"""Create what a run needs, and give the Trainer its callbacks, loggers and checkpoint."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.checkpoints.disk.staging import open_staging
from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.checks.monitors import describe_best_checkpoint
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.config.schema import Trainer as TrainerConfig
from train_anywhere.data.dataset import Splits
from train_anywhere.data.first_rows import check_first_rows
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.torch.loader import BatchLoader
from train_anywhere.data.torch.user_loader import Stream
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError, RanksDifferError, listed
from train_anywhere.features import Features
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.batches import IndexedSplit
from train_anywhere.training.lightning.checkpoint.position import RandomState, seed_everything
from train_anywhere.training.lightning.checkpoint.rank_state import RankState
from train_anywhere.training.lightning.checkpoint.shards import Shards
from train_anywhere.training.lightning.checkpoint.state import FILE, METADATA, CheckpointCallback, StateWriter
from train_anywhere.training.lightning.dropin.connector import RunLogger
from train_anywhere.training.lightning.dropin.model import (
    ConfiguredOptimizer,
    make_callbacks,
    make_loggers,
    make_task,
)
from train_anywhere.training.lightning.dropin.visible import RunCheckpoints
from train_anywhere.training.lightning.hardware import apply_hardware_options
from train_anywhere.training.lightning.loop.early_stop import EarlyStop
from train_anywhere.training.lightning.loop.tensorboard import TensorBoard
from train_anywhere.training.lightning.module import TaskModule
from train_anywhere.training.lightning.rank_splits import (
    RankSplits,
    UserLoaders,
    count_rows,
    open_rank_splits,
    takes_batch_size,
)
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.trainer import Trainer, make_trainer
from train_anywhere.training.lightning.weights import add_adapters
from train_anywhere.training.plan import (
    Plan,
    build_network,
    make_plan,
    make_user_plan,
    refuse_other_framework,
    resume_message,
    validation_notes,
)
from train_anywhere.training.reporting.header import Header, cpu_name, peak_flops


@dataclass(frozen=True)
class Setup:
    """The objects that are created before training; `devices` share the global batch."""

    trainer: Trainer
    module: pl.LightningModule
    plan: Plan
    splits: RankSplits | UserLoaders
    devices: int
    strategy: str


def make_setup(config: Config, topology: Topology, heartbeat: Heartbeat | None = None) -> Setup:
    """Create task, strategy, Trainer, data and network, the cheap checks first."""
    seed_everything(config.seed)
    name, devices = running_strategy(config, topology)
    device = pick_device(config.trainer, topology)
    strategy = make_strategy(name, config, topology, device, devices)
    build = strategy.build if isinstance(strategy, FullyShardedStrategy) else lambda make: make()
    task = build(lambda: make_task(config.task))
    if isinstance(task, pl.LightningModule):
        add_adapters(task, config, whole=True)
        if isinstance(strategy, OneDevicePerRank):
            strategy.allow_unused_parameters(task)
    trainer = make_trainer(config, topology, device, strategy, isinstance(task, Task))
    heartbeat = heartbeat or Heartbeat()
    heartbeat.at("meeting")
    strategy.setup_environment()  # connects the ranks
    heartbeat.at("preparing")

    whole = takes_batch_size(locate(config.data.target["lightning"], "data._target_"))
    batch_size = config.data.batch_size // (1 if whole else topology.world_size)
    stager = Features.of(config).stager
    data = open_splits(config.data, "lightning", config.seed, stager, batch_size=batch_size)
    silent = config.monitor.progress == "none" or not trainer.is_global_zero
    report: Callable[[str], None] = (lambda line: None) if silent else partial(print, flush=True)
    splits = open_rank_splits(config, data, topology, task, trainer, report)
    if isinstance(splits, UserLoaders):
        assert isinstance(task, pl.LightningModule)
        module, plan = task, replace(make_user_plan(config, math.inf, True, True, None), known=False)
        if whole:
            trainer._data_connector.share_batches(config.data.batch_size)
        trainer.when_opened(
            lambda batches: plan.update(opened_plan(config, trainer, splits, batches, report))
        )
        notes = [*data.notes]
    else:
        assert isinstance(task, Task)
        plan = make_plan(config, len(splits.train), len(splits.val or ()), len(splits.test or ()), devices)
        notes = [*data.notes, *validation_notes(config.trainer, plan)]
        if isinstance(splits.train, IndexedSplit):  # a user's DataLoader has its own batch size
            plan = replace(plan, batch_per_rank=splits.train.batches.size.batch_size // devices)
        module = make_module(config, task, plan, devices, data, build)
    for note in notes:
        report(note)
    apply_hardware_options(module, config.trainer, strategy)
    trainer.apply_plan(plan)
    return Setup(trainer, module, plan, splits, devices, name)


def opened_plan(
    config: Config, trainer: Trainer, loaders: UserLoaders, batches: float, report: Callable[[str], None]
) -> Plan:
    """Return the plan of a user's module, whose loaders Lightning has just opened."""
    if math.isinf(batches):
        each = ", the same number on each rank" if trainer.world_size > 1 else ""
        report(
            f"the training loader has no length: an epoch is all batches that it returns{each}; "
            "trainer.limit_train_batches=N sets a number."
        )
    module, combined = trainer.lightning_module, trainer.fit_loop._combined_loader
    tests = is_overridden("test_step", module) and loaders.has("test") and bool(trainer.limit_test_batches)
    assert combined is not None
    sizes = [
        loader.dataset.size.batch_size // trainer.world_size
        if isinstance(loader, BatchLoader)
        else getattr(loader, "batch_size", None)
        for loader in combined.flattened
    ]
    size = sizes[0] if len(sizes) == 1 else None
    plan = make_user_plan(config, batches, trainer.enable_validation, tests, size)
    for note in validation_notes(config.trainer, plan):
        report(note)
    return plan


def make_module(
    config: Config, task: Task, plan: Plan, devices: int, splits: Splits, build: Callable[..., Any]
) -> TaskModule:
    """Return the LightningModule of a task, whose network `build` creates.

    Raises:
        ConfigError: the network is not a torch.nn.Module.
    """
    check_first_rows(task, splits)
    network = build(lambda: build_network(config, splits.facts))
    if not isinstance(network, nn.Module):
        dotted = config.model.target["lightning"]
        raise ConfigError(
            f"model._target_={dotted} returns a {type(network).__name__}, which is not a torch.nn.Module."
        )
    add_adapters(network, config, whole=False)
    return TaskModule(task, network, config, plan, devices)


def describe(setup: Setup, config: Config) -> Header:
    """Return the facts of a run for its first lines."""
    module, device = setup.module, setup.trainer.strategy.root_device
    weights = [p for p in module.parameters() if not isinstance(p, nn.UninitializedParameter)]
    complete = len(weights) == len([*module.parameters()])
    if isinstance(setup.splits, UserLoaders):
        loop = setup.trainer.fit_loop
        rows = {
            "training rows": count_rows(loop._combined_loader),
            "validation": count_rows(loop.epoch_loop.val_loop._combined_loader),
        }
    else:
        parts = (setup.splits.train, setup.splits.val, setup.splits.test)
        names_of_parts = ("training rows", "validation", "test")
        rows = {name: part.rows for name, part in zip(names_of_parts, parts, strict=True) if part}
    names = {"cuda": lambda: torch.cuda.get_device_name(device), "mps": lambda: "Apple GPU"}
    return Header(
        model=config.model.name if isinstance(module, TaskModule) else type(module).__name__,
        parameters=sum(p.numel() for p in weights) if complete else None,
        trained=sum(p.numel() for p in weights if p.requires_grad),
        rows=rows,
        device=names.get(device.type, cpu_name)(),
        devices=setup.devices,
        strategy=setup.strategy,
    )


def min_seconds_per_token(setup: Setup, trainer: TrainerConfig) -> float | None:
    """Return the least seconds per token by the GPU's peak, or None if it is not known."""
    module, device = setup.module, setup.trainer.strategy.root_device
    if not isinstance(module, TaskModule) or module.task.unit != "tokens" or device.type != "cuda":
        return None
    flops = getattr(module.network, "flops_per_token", None)
    if not isinstance(flops, float):
        return None
    most = peak_flops(torch.cuda.get_device_name(device), trainer.precision, trainer.tf32)
    return flops / most if most else None


class CompareWeights(pl.Callback):
    """Callback that compares the weights of all ranks every few epochs."""

    def __init__(self, every_n_epochs: int) -> None:
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the weights if due. Raises RanksDifferError."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            refuse_different_weights(pl_module, trainer.strategy)


def refuse_different_weights(module: nn.Module, strategy: Strategy) -> None:
    """Raise RanksDifferError on all ranks if their weights differ. All ranks must call it."""
    ranks = getattr(strategy, "world_size", 1)
    if ranks == 1:
        return
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    own = torch.tensor([int.from_bytes(digest.digest()[:6])], dtype=torch.int64, device=strategy.root_device)
    checksums = strategy.all_gather(own).flatten().tolist()
    others = [str(rank) for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if others:
        named = f"rank {others[0]}" if len(others) == 1 else f"ranks {listed(others)}"
        raise RanksDifferError(
            f"the weights of {named} of {ranks} are not those of rank 0: each rank changes them in its own way (a step that depends on "
            "the rank, or weights that change without a gradient); the checkpoints hold those of rank 0."
        )


def open_writer(
    trainer: Trainer, run: RunDir, config: Config, recorder: RunRecorder | None
) -> tuple[StateWriter, RunCheckpoints]:
    """Return the writer of checkpoints, and what user code sees. The Trainer is resumed."""
    sharded = isinstance(trainer.strategy, FullyShardedStrategy)
    writes = not config.trainer.fast_dev_run and trainer.is_global_zero
    checkpointer = open_checkpointer(config.checkpoint, run, sharded=sharded) if writes else None
    saved = trainer.strategy.broadcast(checkpointer.store.newest_good() if checkpointer else None)
    if writes and recorder:
        recorder.record_first_step(saved.step if saved else 0)
        recorder.follow(lambda: trainer.steps_done)
    if saved:
        refuse_other_framework(saved, "lightning")
        if (saved.path / METADATA).exists() != sharded:
            written, fix = ("whole", "ddp") if sharded else ("in shards", "fsdp")
            raise CheckpointError(f"{saved.path} was written {written}; resume with strategy={fix}.")
        trainer.resume_at(saved.step)
    shards = None
    if sharded:  # all ranks open them together
        staging = open_staging(run, config.checkpoint.local)
        shards = Shards(run.checkpoints, staging.rank_folder(trainer.global_rank) if staging else None)
    writer = StateWriter(checkpointer, shards, saved)
    trainer.strategy.checkpoint_io = writer
    monitor, mode = config.checkpoint.monitor, config.checkpoint.mode or "min"
    seen = RunCheckpoints(run.checkpoints, monitor, mode, writer.close)
    before = checkpointer.store.rule.best(checkpointer.store.all()) if checkpointer and saved else None
    for one in (trainer.strategy.broadcast(before), saved) if saved else ():
        if one:
            seen.follow(one.path / FILE, one.value)
    return writer, seen


def note_start(trainer: Trainer, checkpoints: CheckpointCallback) -> None:
    """Print where training continues, and which checkpoint will be the best."""
    config, saved, note = checkpoints.config, checkpoints.writer.newest, checkpoints.metrics.progress.note
    if saved:
        note(resume_message(saved, config, checkpoints.plan, trainer.world_size))
    if line := describe_best_checkpoint(config.task, config.checkpoint):
        note(line)


def add_callbacks(
    trainer: Trainer, module: pl.LightningModule, checkpoints: CheckpointCallback, training: Any, devices: int
) -> None:
    """Add the clock first, then the user's callbacks: the one that saves comes last.

    `training` is the training loader; `devices` share the global batch.
    """
    config, metrics = checkpoints.config, checkpoints.metrics
    trainer.callbacks.insert(0, metrics.clock)
    report, every = metrics.progress.note, config.monitor.compare_weights_every_n_epochs
    if not isinstance(module, TaskModule) and not is_overridden("configure_optimizers", module):
        trainer.callbacks.append(ConfiguredOptimizer(module, config, checkpoints.plan, devices))
    elif config.optimizer.groups and not isinstance(module, TaskModule):
        report("optimizer.groups has no effect: this module has its own configure_optimizers.")
    trainer.callbacks += [
        *make_callbacks(config.callbacks),
        checkpoints.seen,
        *([CompareWeights(every)] if every and not checkpoints.writer.shards else []),
        RandomState(config.seed, report),
        RankState(training if isinstance(training, Stream) else None, report),
        metrics,
        EarlyStop(config.trainer.early_stopping, metrics, config.trainer.min_epochs or 0),
        *([] if config.trainer.fast_dev_run else [checkpoints]),
    ]


def add_loggers(trainer: Trainer, run: RunDir, checkpoints: CheckpointCallback) -> None:
    """Add the loggers of the configuration, TensorBoard, and metrics.csv."""
    config, metrics, saved = checkpoints.config, checkpoints.metrics, checkpoints.writer.newest
    loggers: list[Logger] = []
    if not config.trainer.fast_dev_run:
        step = saved.step if saved else 0
        if config.monitor.csv and trainer.is_global_zero:
            metrics.open_csv(run.metrics_csv, step)
        loggers += make_loggers(config, run, trainer.is_global_zero)
        if config.monitor.tensorboard:
            checkpointer = checkpoints.writer.checkpointer
            events = checkpointer.events if checkpointer else EventFileSync(None, run.tensorboard)
            # Lightning counts steps from 0
            loggers.append(TensorBoard(events, step if metrics.native else step - 1))
    trainer.use_folder(run.path)
    trainer._logger_connector.connect(loggers or [RunLogger("run", run.path, run.id)], metrics.receive)
