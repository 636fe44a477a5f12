"""Create what a run needs, and give the Trainer its callbacks, loggers and checkpoint."""

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.checks.monitors import describe_best_checkpoint
from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.config.schema import Trainer as TrainerConfig
from train_anywhere.data.dataset import Splits, check_labels
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.torch.loader import BatchLoader
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError, RanksDifferError, listed
from train_anywhere.features import Features
from train_anywhere.files.node_disk import find_run_folder, rank_folder
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.training.event_files import EventFiles
from train_anywhere.training.lightning.checkpoint.position import seed_everything
from train_anywhere.training.lightning.checkpoint.rank_state import RankState
from train_anywhere.training.lightning.checkpoint.shards import METADATA, Shards
from train_anywhere.training.lightning.checkpoint.state import FILE, CheckpointCallback, StateWriter
from train_anywhere.training.lightning.dropin.loggers import RunLogger, listen
from train_anywhere.training.lightning.dropin.model import (
    ConfiguredOptimizer,
    make_callbacks,
    make_loggers,
    make_task,
)
from train_anywhere.training.lightning.dropin.trainable import refuse_uneven_batches
from train_anywhere.training.lightning.dropin.user_code import overrides
from train_anywhere.training.lightning.dropin.visible import RunCheckpoints
from train_anywhere.training.lightning.hardware import apply_hardware_options
from train_anywhere.training.lightning.loaders import (
    UserLoaders,
    count_rows,
    open_loaders,
    takes_batch_size,
)
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.lightning.loop.early_stop import EarlyStop
from train_anywhere.training.lightning.loop.moments import Moments
from train_anywhere.training.lightning.loop.steps import training_loaders
from train_anywhere.training.lightning.loop.tensorboard import TensorBoard
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.trainer import make_trainer
from train_anywhere.training.lightning.weights import add_adapters
from train_anywhere.training.plan import (
    Plan,
    batchnorm_notes,
    build_network,
    make_user_plan,
    refuse_other_framework,
    resume_message,
    validation_notes,
)
from train_anywhere.training.reporting.header import Header, cpu_name, peak_flops

EACH_BATCH = ("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
              "on_before_optimizer_step", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end")  # fmt: skip
"""Hooks of callbacks that Lightning calls in each step."""


@dataclass(frozen=True)
class Setup:
    """The objects that are created before training.

    Attributes:
        optimizer: makes the optimizer of the configuration, if the module does not have its own.
        devices: number of devices that share the global batch.
        facts: facts of the data set.
    """

    trainer: pl.Trainer
    module: pl.LightningModule
    optimizer: ConfiguredOptimizer
    course: Course
    loaders: UserLoaders
    devices: int
    strategy: str
    facts: Mapping[str, Any]

    @property
    def plan(self) -> Plan:
        """The size of the run."""
        return self.course.plan


def make_setup(config: Config, topology: Topology, heartbeat: Heartbeat | None = None) -> Setup:
    """Return all that a run needs before training."""
    trainer = connect_trainer(config, topology, heartbeat or Heartbeat())
    return make_module(config, topology, trainer, open_data(config, topology))


def connect_trainer(
    config: Config, topology: Topology, heartbeat: Heartbeat, folder: Path | None = None
) -> pl.Trainer:
    """Return the Trainer after the ranks have connected. User code writes into `folder`."""
    seed_everything(config.seed)
    os.environ["PL_GLOBAL_SEED"] = str(config.seed)  # Lightning's samplers and user code read it
    name, _ = running_strategy(config, topology)
    strategy = make_strategy(name, config, topology, pick_device(config.trainer, topology))
    trainer = make_trainer(config, topology, strategy, folder)
    heartbeat.at("meeting")
    strategy.setup_environment()  # connects the ranks
    heartbeat.at("preparing")
    return trainer


def open_data(config: Config, topology: Topology) -> Splits:
    """Return the splits of `data=`. Raises DataError."""
    size, target = config.data.batch_size, locate(config.data.target["lightning"], "data._target_")
    if not takes_batch_size(target):
        size //= topology.world_size
    return open_splits(config.data, "lightning", config.seed, Features.of(config).stager, batch_size=size)


def make_module(config: Config, topology: Topology, trainer: pl.Trainer, data: Splits) -> Setup:
    """Return the module, its loaders and the plan of the run."""
    strategy, (name, devices) = trainer.strategy, running_strategy(config, topology)
    build = strategy.build if isinstance(strategy, FullyShardedStrategy) else lambda make: make()
    silent = config.monitor.progress == "none" or not trainer.is_global_zero
    report: Callable[[str], None] = (lambda line: None) if silent else partial(print, flush=True)
    course = Course(replace(make_user_plan(config, math.inf, True, True, None), known=False))
    optimizer = ConfiguredOptimizer(trainer, config, course, devices)
    if task_has_network(config.task, "lightning"):
        module = build(lambda: make_task(config.task))
        add_adapters(module, config, whole=True)
        if isinstance(strategy, OneDevicePerRank):
            strategy.allow_unused_parameters(module)
    else:
        network = make_network(config, data, build)
        module = make_task(config.task, network=network, make_optimizer=optimizer.make_optimizer)
    loaders = open_loaders(config, data, topology, module, report)
    course.when_opened(lambda _: refuse_uneven_batches(trainer))
    course.when_opened(
        lambda batches: course.plan.update(opened_plan(config, trainer, loaders, batches, report))
    )
    for note in [*data.notes, *batchnorm_notes(config, (name for name, _ in module.named_buffers()))]:
        report(note)
    apply_hardware_options(module, config.trainer, strategy)
    return Setup(trainer, module, optimizer, course, loaders, devices, name, data.facts)


def opened_plan(
    config: Config, trainer: pl.Trainer, loaders: UserLoaders, batches: float, report: Callable[[str], None]
) -> Plan:
    """Return the plan of a run whose loaders Lightning has just opened."""
    if math.isinf(batches):
        each = ", the same number on each rank" if trainer.world_size > 1 else ""
        report(
            f"the training loader has no length: an epoch is all batches that it returns{each}; "
            "trainer.limit_train_batches=N sets a number."
        )
    module = trainer.lightning_module
    tests = is_overridden("test_step", module) and loaders.has("test") and bool(trainer.limit_test_batches)
    sizes = [
        loader.dataset.size.batch_per_rank
        if isinstance(loader, BatchLoader)
        else getattr(loader, "batch_size", None)
        for loader in training_loaders(trainer)
    ]
    size = sizes[0] if len(sizes) == 1 else None
    plan = make_user_plan(config, batches, trainer.enable_validation, tests, size)
    for note in validation_notes(config.trainer, plan):
        report(note)
    return plan


def make_network(config: Config, splits: Splits, build: Callable[..., Any]) -> nn.Module:
    """Return the network of the section `model`, which `build` creates.

    Raises:
        ConfigError: the network is not a torch.nn.Module.
        DataError: the first rows do not suit it.
    """
    check_labels(splits)
    network = build(lambda: build_network(config, splits.facts))
    if not isinstance(network, nn.Module):
        dotted = config.model.target["lightning"]
        raise ConfigError(
            f"model._target_={dotted} returns a {type(network).__name__}, which is not a torch.nn.Module."
        )
    add_adapters(network, config, whole=False)
    return network


def describe(setup: Setup, config: Config) -> Header:
    """Return the facts of a run for its first lines."""
    module, device = setup.module, setup.trainer.strategy.root_device
    weights = [p for p in module.parameters() if not isinstance(p, nn.UninitializedParameter)]
    complete = len(weights) == len([*module.parameters()])
    loaders, val = setup.loaders, setup.trainer.val_dataloaders
    rows = {
        "training rows": count_rows(setup.trainer.train_dataloader),
        "validation": count_rows(loaders.val if val is None else val),  # no `or`: a stream has no truth value
        "test": count_rows(loaders.test),
    }
    names = {"cuda": lambda: torch.cuda.get_device_name(device), "mps": lambda: "Apple GPU"}
    return Header(
        model=type(module).__name__ if task_has_network(config.task, "lightning") else config.model.name,
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
    flops = getattr(getattr(module, "network", None), "flops_per_token", None)
    if not isinstance(flops, float) or setup.facts.get("unit") != "tokens" or device.type != "cuda":
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
    trainer: pl.Trainer, course: Course, run: RunDir, config: Config, recorder: RunRecorder | None
) -> tuple[StateWriter, RunCheckpoints]:
    """Return the writer of checkpoints, and what user code sees. The course is that of the newest one."""
    sharded = isinstance(trainer.strategy, FullyShardedStrategy)
    writes = not config.trainer.fast_dev_run and trainer.is_global_zero
    checkpointer = open_checkpointer(config.checkpoint, run, sharded=sharded) if writes else None
    saved = trainer.strategy.broadcast(checkpointer.store.newest_good() if checkpointer else None)
    if writes and recorder:
        recorder.record_first_step(saved.step if saved else 0)
        recorder.follow(lambda: course.steps_done)
    if saved:
        refuse_other_framework(saved, "lightning")
        if (saved.path / METADATA).exists() != sharded:
            written, fix = ("whole", "ddp") if sharded else ("in shards", "fsdp")
            raise CheckpointError(f"{saved.path} was written {written}; resume with strategy={fix}.")
        course.resume_at(saved.step)
    shards = None
    if sharded:  # all ranks open them together
        local = find_run_folder(run.path, config.checkpoint.local)
        shards = Shards(run.checkpoints, rank_folder(local, trainer.global_rank) if local else None)
    writer = StateWriter(checkpointer, shards, saved)
    trainer.strategy.checkpoint_io = writer
    monitor, mode = config.checkpoint.monitor, config.checkpoint.mode or "min"
    seen = RunCheckpoints(run.checkpoints, monitor, mode, writer.close)
    before = checkpointer.store.rule.best(checkpointer.store.all()) if checkpointer and saved else None
    for one in (trainer.strategy.broadcast(before), saved) if saved else ():
        if one:
            seen.follow(one.path / FILE, one.value)
    return writer, seen


def note_start(trainer: pl.Trainer, checkpoints: CheckpointCallback) -> None:
    """Print where training continues, and which checkpoint will be the best."""
    config, saved, note = checkpoints.config, checkpoints.writer.newest, checkpoints.metrics.progress.note
    if saved:
        note(resume_message(saved, config, checkpoints.plan, trainer.world_size))
    if line := describe_best_checkpoint(config.task, config.checkpoint):
        note(line)


def add_callbacks(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    checkpoints: CheckpointCallback,
    optimizer: ConfiguredOptimizer,
) -> None:
    """Add the clock first, then the user's callbacks: the one that saves comes last.

    `optimizer` is that of a module without one.
    """
    config, metrics = checkpoints.config, checkpoints.metrics
    saves = [] if config.trainer.fast_dev_run else [checkpoints]
    trainer.strategy.training_loaders.report = metrics.progress.report  # type: ignore[attr-defined]
    over = [metrics.epoch_over, *(one.epoch_over for one in saves)]
    trainer.callbacks = [
        Moments(metrics.course.loaders_opened, *over),
        *([metrics.over_ranks] if metrics.over_ranks else []),
        metrics.clock,
        checkpoints.weights,
        *trainer.callbacks,
    ]
    report, every = metrics.progress.note, config.monitor.compare_weights_every_n_epochs
    own = task_has_network(config.task, "lightning") and is_overridden("configure_optimizers", module)
    if not is_overridden("configure_optimizers", module):
        module.configure_optimizers = lambda: optimizer.make_optimizer(module)  # type: ignore[method-assign]
    if not own:
        trainer.callbacks.append(optimizer)
    elif config.optimizer.groups:
        report("optimizer.groups has no effect: this module has its own configure_optimizers.")
    early = EarlyStop(config.trainer, metrics)
    checkpoints.seen.when_epoch_ends(early.compare_epoch)
    trainer.callbacks += [
        *make_callbacks(config.callbacks, isinstance(trainer.strategy, FullyShardedStrategy)),
        checkpoints.seen,
        *([CompareWeights(every)] if every and not checkpoints.writer.shards else []),
        RankState(config.seed, metrics.course, metrics.progress.report),
        metrics,
        early,
        *saves,
    ]
    for callback in trainer.callbacks:
        if type(callback).__module__.startswith("train_anywhere."):
            # Lightning leaves out what can't be called; ten calls of a hook that does nothing cost a small model's step 15 %
            vars(callback).update({hook: None for hook in EACH_BATCH if not overrides(callback, hook)})


def add_loggers(trainer: pl.Trainer, run: RunDir, checkpoints: CheckpointCallback) -> None:
    """Add the loggers of the configuration, TensorBoard, and metrics.csv."""
    config, metrics, saved = checkpoints.config, checkpoints.metrics, checkpoints.writer.newest
    loggers: list[Logger] = []
    if not config.trainer.fast_dev_run:
        step = saved.step if saved else 0
        if config.monitor.csv and trainer.is_global_zero:
            metrics.open_csv(run.metrics_csv, step)
        loggers += make_loggers(config, run, trainer.is_global_zero)
        if config.monitor.tensorboard:
            # Lightning counts steps from 0
            loggers.append(TensorBoard(EventFiles(run.tensorboard), step - 1))
    listen(trainer, loggers or [RunLogger("run", run.path, run.id)], metrics.receive)
