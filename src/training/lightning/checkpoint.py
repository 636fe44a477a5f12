"""When a checkpoint is written, and what is in it."""

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from src.checkpoints.checkpointer import AsyncCheckpointer
from src.checkpoints.info import CheckpointInfo, SavedCheckpoint
from src.checkpoints.interval import Interval
from src.config.schema import Config
from src.errors import CheckpointError
from src.training.lightning.buffers import Buffers
from src.training.lightning.callbacks import Reporter
from src.training.lightning.position import position, set_loops
from src.training.lightning.shards import Shards
from src.training.nan_watch import judged
from src.training.plan import Plan

FILE = "model.ckpt"
"""Lightning's file in the folder of a checkpoint: weights, optimizer, schedule, loops, random states."""

METADATA = ".metadata"
"""The file that says which weights are in which shard, in the folder of a sharded checkpoint."""


class Stopped(Exception):
    """Leaves the Trainer when the ranks have agreed to stop and the checkpoint is written."""


class Saver(pl.Callback):
    """Saves every few epochs, steps or seconds, at the end, and when the ranks have agreed to stop.

    Args:
        publisher: writes checkpoints; all ranks take part, rank 0 alone has one.
        saved: the checkpoint that the run goes on from.
        shards: writes this rank's part of the weights, where they are split over the ranks.

    Attributes:
        newest: the newest checkpoint; only rank 0 knows of those written since.
        start: epoch and batch to go on with.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        publisher: AsyncCheckpointer | None,
        reporter: Reporter,
        saved: SavedCheckpoint | None,
        interval: Interval,
        shards: Shards | None = None,
    ) -> None:
        self.config, self.plan, self.publisher, self.reporter = config, plan, publisher, reporter
        self.interval, self.buffers, self.shards = interval, Buffers(), shards
        self.newest = saved
        # of the checkpoint whose shards are being written; and why those before it could not be written
        self._facts: dict[str, Any] | None = None
        self._lost: str | None = None
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
        if self.shards and not self.shards.writing:
            self.publish_shards()
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
            self._save(trainer, value=judged(self.reporter.of_epoch, self.config.checkpoint.monitor))
        self._leave_if_stopping()

    def on_test_batch_start(self, *args: Any) -> None:
        """The test need not be finished either, and leaves nothing to save.

        Raises:
            Stopped: after a stop.
        """
        self._leave_if_stopping()

    def publish_shards(self) -> None:
        """When all ranks have written their shards the checkpoint can be published; where a disk refused one, say so.

        Raises:
            CheckpointError: another error has ended the writing.
        """
        if not self.shards or not self._facts:
            return
        facts, self._facts = self._facts, None
        self._lost = self.shards.wait()
        if self.publisher and self._lost:
            self.publisher.tell(f"{self._lost}; going on without it.")
        elif self.publisher:
            self.publisher.save(self._write, CheckpointInfo(**facts))

    def close(self) -> None:
        """Wait until all checkpoints are in the run folder. Raises CheckpointError where it can't be written."""
        self.publish_shards()
        if self.publisher:
            self.publisher.finish()
            self.newest = self.publisher.newest or self.newest
            if self.shards:
                self.shards.clear()
        if self._lost:
            raise CheckpointError(self._lost)

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
        began = time.monotonic()
        self.publish_shards()
        if self.publisher:
            self.publisher.wait()
        facts: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "batch": batch,
            "metrics": dict(self.reporter.metrics),
            "value": value,
            "framework": "lightning",
        }
        state = trainer._checkpoint_connector.dump_checkpoint()  # of all ranks
        if self.shards:
            if self.publisher:
                self.shards.clear()
            self.shards.write(state, step)
            self._facts = facts
        if self.publisher:
            self.buffers.fill(state)
            if not self.shards:
                self.publisher.save(self._write, CheckpointInfo(**facts))
        self.interval.saved(time.monotonic() - began)
        self.reporter.saving = False

    def _write(self, folder: Path) -> None:
        """The files of a checkpoint; the publisher may call it again where a disk refused them."""
        if self.shards:
            self.shards.link(folder)
        self.buffers.write(folder / FILE)
