"""When a checkpoint is written, and what is in it."""

import os
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from src.checkpoint_store import Saved
from src.interval import Interval
from src.lightning_side.buffers import Buffers
from src.lightning_side.callbacks import Reporter
from src.lightning_side.position import position, set_loops
from src.plan import Plan
from src.publish import Publisher
from src.schema import Config

FILE = "model.ckpt"
"""Lightning's file in the folder of a checkpoint: weights, optimizer, schedule, loops, random states."""

METADATA = ".metadata"
"""The file that says which weights are in which shard, in the folder of a sharded checkpoint."""

SHARDS = "shards"
"""Folder beside the checkpoints, where all ranks write the parts of the next one."""


class Stopped(Exception):
    """Leaves the Trainer when the ranks have agreed to stop and the checkpoint is written."""


class Saver(pl.Callback):
    """Saves every few epochs, steps or seconds, at the end, and when the ranks have agreed to stop.

    Args:
        publisher: writes checkpoints; all ranks take part, rank 0 alone has one.
        saved: the checkpoint that the run goes on from.
        sharded: every rank writes its part of the weights.

    Attributes:
        newest: the newest checkpoint; only rank 0 knows of those written since.
        start: epoch and batch to go on with.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        publisher: Publisher | None,
        reporter: Reporter,
        saved: Saved | None,
        interval: Interval,
        sharded: bool = False,
    ) -> None:
        self.config, self.plan, self.publisher, self.reporter = config, plan, publisher, reporter
        self.interval, self.buffers, self.sharded = interval, Buffers(), sharded
        self.newest = saved
        self.start = position(saved, config.trainer, plan)
        if saved:
            reporter.go_on(saved.metrics)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on at the position that the manifest names."""
        set_loops(checkpoint["loops"]["fit_loop"], *self.start, self.plan.train_batches)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step within an epoch; at its end there is a validation to wait for.

        Raises:
            Stopped: after a stop.
        """
        if self.publisher:
            self.publisher.check()
        epoch_over = batch_idx + 1 == self.plan.train_batches or trainer.should_stop
        if epoch_over or (batch_idx + 1) % self.plan.accumulate:
            return
        if self.reporter.stopping or self.reporter.saving or self.interval.by_step(trainer.global_step):
            self._save(trainer, value=None)
        self._leave_if_stopping()

    def on_validation_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        """A validation need not be finished: the run resumes with it.

        Raises:
            Stopped: after a stop.
        """
        if self.reporter.stopping and trainer.fit_loop.batch_idx + 1 == self.plan.train_batches:
            self._save(trainer, value=None)
            raise Stopped

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """At the end of an epoch, when its validation is done.

        Raises:
            Stopped: after a stop.
        """
        epochs = trainer.current_epoch + 1
        over = trainer.should_stop or epochs == self.plan.max_epochs
        if over or self.reporter.stopping or epochs % self.config.checkpoint.every_n_epochs == 0:
            self._save(trainer, value=self.reporter.of_epoch.get(self.config.checkpoint.monitor))
        self._leave_if_stopping()

    def on_test_batch_start(self, *args: Any) -> None:
        """The test need not be finished either, and leaves nothing to save.

        Raises:
            Stopped: after a stop.
        """
        self._leave_if_stopping()

    def close(self) -> None:
        """Wait until all checkpoints are in the run folder. Raises CheckpointError where it can't be written."""
        if self.publisher:
            self.publisher.finish()
            self.newest = self.publisher.newest or self.newest
            shutil.rmtree(self.publisher.store.folder / SHARDS, ignore_errors=True)

    def best(self, trainer: pl.Trainer) -> Path | None:
        """File of the checkpoint to test, the same on all ranks: the best one, else the newest, else None."""
        self.close()
        found = self.publisher.store.best() if self.publisher else None
        found = trainer.strategy.broadcast(found)
        return found.path / FILE if found else None

    def _leave_if_stopping(self) -> None:
        if self.reporter.stopping:
            raise Stopped

    def _save(self, trainer: pl.Trainer, value: float | None) -> None:
        """Write a checkpoint; `value` is the metric of `checkpoint.monitor` for these very weights."""
        step, epoch, batch = trainer.global_step, trainer.current_epoch, trainer.fit_loop.batch_idx + 1
        if batch == self.plan.train_batches and not trainer.validating:
            epoch, batch = epoch + 1, 0
        if self.publisher:
            self.publisher.wait_buffers()
        state = trainer._checkpoint_connector.dump_checkpoint()  # of all ranks
        shards = self._write_shards(trainer, state) if self.sharded else None
        if self.publisher:
            self.buffers.fill(state)
            self.publisher.save(
                lambda folder: self._write(folder, shards),
                step=step,
                epoch=epoch,
                batch=batch,
                metrics=dict(self.reporter.metrics),
                value=value,
                framework="lightning",
            )
            self.interval.saved(self.publisher.stall)
        self.reporter.saving = False

    def _write_shards(self, trainer: pl.Trainer, state: dict[str, Any]) -> Path:
        """All ranks write their parts, which leave the state; returns where. The rest is for the publisher."""
        from src.lightning_side.sharded import write_shards

        own = self.publisher.store.folder / SHARDS if self.publisher else None
        if own:
            shutil.rmtree(own, ignore_errors=True)
        folder: Path = trainer.strategy.broadcast(own)
        write_shards(state, folder)
        return folder

    def _write(self, folder: Path, shards: Path | None) -> None:
        """The files of a checkpoint; the publisher may call it again where a disk refused them."""
        for shard in shards.iterdir() if shards else ():
            try:
                os.link(shard, folder / shard.name)
            except OSError:  # a file system without links
                shutil.copyfile(shard, folder / shard.name)
        self.buffers.write(folder / FILE)
