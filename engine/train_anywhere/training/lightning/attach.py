"""Give a Trainer its callbacks, loggers, and the checkpoint to resume from. A callback compares the weights of all ranks."""

import hashlib
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch import nn

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.disk.staging import open_staging
from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.checks.monitors import describe_best_checkpoint
from train_anywhere.config.schema import Checkpoint
from train_anywhere.data.torch.user_loader import Stream
from train_anywhere.errors import CheckpointError, RanksDifferError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder
from train_anywhere.training.lightning.checkpoint.random_state import RandomState
from train_anywhere.training.lightning.checkpoint.rank_state import RankState
from train_anywhere.training.lightning.checkpoint.shards import Shards
from train_anywhere.training.lightning.checkpoint.state import FILE, METADATA, CheckpointCallback, StateWriter
from train_anywhere.training.lightning.dropin.loggers import RunLogger
from train_anywhere.training.lightning.dropin.model import (
    ConfiguredOptimizer,
    has_own_optimizer,
    make_callbacks,
    make_loggers,
)
from train_anywhere.training.lightning.dropin.visible import RunCheckpoints
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback
from train_anywhere.training.lightning.loop.early_stop import EarlyStop
from train_anywhere.training.lightning.loop.tensorboard import TensorBoard
from train_anywhere.training.lightning.module import TaskModule
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.trainer import Trainer
from train_anywhere.training.plan import refuse_other_framework, resume_message
from train_anywhere.training.reporting.metrics_csv import CsvLog


class CompareWeights(pl.Callback):
    """Callback that compares the weights of all ranks every few epochs."""

    def __init__(self, every_n_epochs: int) -> None:
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the weights if due. Raises RanksDifferError."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            refuse_different_weights(pl_module, trainer.strategy)


def refuse_different_weights(module: nn.Module, strategy: Strategy) -> None:
    """Compare a checksum of the weights over the ranks. All ranks must call it.

    Raises:
        RanksDifferError: some ranks differ from rank 0; all ranks raise it.
    """
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
        named = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(others)}"
        raise RanksDifferError(
            f"the weights of {named} of {ranks} are not those of rank 0: each rank changes them in its own way (a step that depends on "
            "the rank, or weights that change without a gradient); the checkpoints hold those of rank 0."
        )


def attach(
    trainer: Trainer, run: RunDir, metrics: MetricsCallback, recorder: RunRecorder | None = None
) -> CheckpointCallback:
    """Return the callback that saves checkpoints, and prepare the Trainer to resume from the newest good one.

    With a sharded strategy each rank writes a part of the checkpoint.
    """
    config, sharded = metrics.config, isinstance(trainer.strategy, FullyShardedStrategy)
    writes = not config.trainer.fast_dev_run and trainer.is_global_zero
    checkpointer = open_checkpointer(config.checkpoint, run, sharded=sharded) if writes else None
    saved = trainer.strategy.broadcast(checkpointer.store.newest_good() if checkpointer else None)
    if writes and recorder:
        recorder.record_first_step(saved.step if saved else 0)
        recorder.steps_done = lambda: trainer.steps_done
    if saved:
        refuse_other_framework(saved, "lightning")
        refuse_other_layout(saved, sharded)
        trainer.steps_done = saved.step
    shards = open_shards(run, config.checkpoint, trainer.global_rank) if sharded else None
    writer = StateWriter(checkpointer, shards, saved)
    trainer.strategy.checkpoint_io = writer
    monitor, mode = config.checkpoint.monitor, config.checkpoint.mode or "min"
    seen = RunCheckpoints(run.checkpoints, monitor, mode, writer.close)
    before = checkpointer.store.rule.best(checkpointer.store.all()) if checkpointer and saved else None
    for one in (trainer.strategy.broadcast(before), saved) if saved else ():
        if one:
            seen.follow(one.path / FILE, one.value)
    return CheckpointCallback(writer, metrics, saved, seen)


def note_start(trainer: Trainer, checkpoints: CheckpointCallback) -> None:
    """Print where training continues, and which checkpoint will be the best."""
    config, saved, note = checkpoints.config, checkpoints.writer.newest, checkpoints.metrics.progress.note
    if saved:
        note(resume_message(saved, config, checkpoints.plan, trainer.world_size))
    if line := describe_best_checkpoint(config.task, config.checkpoint):
        note(line)


def open_shards(run: RunDir, checkpoint: Checkpoint, rank: int) -> Shards:
    """Return the writer of this rank's parts of checkpoints, which uses the node's disk. All ranks must call this."""
    staging = open_staging(run, checkpoint.local)
    return Shards(run.checkpoints, staging.rank_folder(rank) if staging else None)


def add_callbacks(
    trainer: Trainer, module: pl.LightningModule, checkpoints: CheckpointCallback, training: Any, devices: int
) -> None:
    """Add the clock first, the user's callbacks next, this project's last: the one that saves must see the results of all others.

    `training` is the training loader; `devices` share the global batch.
    """
    config, metrics = checkpoints.config, checkpoints.metrics
    trainer.callbacks.insert(0, metrics.clock)
    report, every = metrics.progress.note, config.monitor.compare_weights_every_n_epochs
    if not isinstance(module, TaskModule) and not has_own_optimizer(module):
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
            metrics.csv = CsvLog(run.metrics_csv, metrics.names())
            metrics.csv.resume(step)
        loggers += make_loggers(config, run, trainer.is_global_zero)
        if config.monitor.tensorboard:
            # Lightning counts steps from 0
            purged = step if metrics.native else step - 1
            loggers.append(TensorBoard(_events(checkpoints.writer.checkpointer, run), purged))
    trainer.use_folder(run.path)
    trainer._logger_connector.connect(loggers or [RunLogger("run", run.path, run.id)], metrics.receive)


def refuse_other_layout(saved: SavedCheckpoint, sharded: bool) -> None:
    """Raise CheckpointError for a whole checkpoint with a sharded strategy, or a sharded one with another strategy."""
    if (saved.path / METADATA).exists() != sharded:
        written, fix = ("whole", "ddp") if sharded else ("in shards", "fsdp")
        raise CheckpointError(f"{saved.path} was written {written}; resume with strategy={fix}.")


def _events(checkpointer: AsyncCheckpointer | None, run: RunDir) -> EventFileSync:
    return checkpointer.events if checkpointer else EventFileSync(None, run.tensorboard)
