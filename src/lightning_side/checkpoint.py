"""When a checkpoint is written, and what is in it."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from src.checkpoint_store import CheckpointStore, Saved
from src.lightning_side.callbacks import Reporter
from src.lightning_side.position import position, set_loops
from src.plan import Plan
from src.schema import Config

FILE = "model.ckpt"
"""Lightning's file in the folder of a checkpoint: weights, optimizer, schedule, loops, random states."""


class Stopped(Exception):
    """Leaves the Trainer when the ranks have agreed to stop and the checkpoint is written."""


class Saver(pl.Callback):
    """Saves every few epochs or steps, at the end, and when the ranks have agreed to stop.

    Args:
        store: where to; all ranks take part, rank 0 alone writes.
        saved: the checkpoint that the run goes on from.

    Attributes:
        newest: the newest checkpoint; only rank 0 knows of those written since.
        start: epoch and batch to go on with.
    """

    def __init__(
        self, config: Config, plan: Plan, store: CheckpointStore, reporter: Reporter, saved: Saved | None
    ) -> None:
        self.config, self.plan, self.store, self.reporter = config, plan, store, reporter
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
        epoch_over = batch_idx + 1 == self.plan.train_batches or trainer.should_stop
        if epoch_over or (batch_idx + 1) % self.plan.accumulate:
            return
        every = self.config.checkpoint.every_n_steps
        if self.reporter.stopping or (every and trainer.global_step % every == 0):
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

    def best(self, trainer: pl.Trainer) -> Path | None:
        """File of the checkpoint to test, the same on all ranks: the best one, else the newest, else None."""
        found = (self.store.best() or self.newest) if trainer.is_global_zero else None
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
        folder: Path = trainer.strategy.broadcast(self.store.begin(step) if trainer.is_global_zero else None)
        trainer.save_checkpoint(folder / FILE)
        if trainer.is_global_zero:
            self.newest = self.store.commit(
                folder,
                step=step,
                epoch=epoch,
                batch=batch,
                metrics=self.reporter.metrics,
                value=value,
                framework="lightning",
            )
