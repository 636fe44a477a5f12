"""When a checkpoint is written, and what is in it."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from src.checkpoint_store import CheckpointStore, Saved
from src.lightning_side.callbacks import Reporter
from src.lightning_side.position import position, set_loops
from src.plan import Plan
from src.schema import Checkpoint

FILE = "model.ckpt"
"""Lightning's file in the folder of a checkpoint: weights, optimizer, schedule, loops, random states."""


class Stopped(Exception):
    """Leaves the Trainer after the checkpoint of a stop is written, before it validates or trains on."""


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
        self, config: Checkpoint, plan: Plan, store: CheckpointStore, reporter: Reporter, saved: Saved | None
    ) -> None:
        self.config, self.plan, self.store, self.reporter = config, plan, store, reporter
        self.newest = saved
        reporter.metrics |= saved.metrics if saved else {}
        self.start = position(saved, plan)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on at the position that the manifest names."""
        set_loops(checkpoint["loops"]["fit_loop"], *self.start)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """In mid-epoch, after an optimizer step. The end of an epoch waits for its validation.

        Raises:
            Stopped: after a stop.
        """
        done = batch_idx + 1
        if done % self.plan.accumulate or done == self.plan.train_batches or trainer.should_stop:
            return
        every = self.config.every_n_steps
        if self.reporter.stopping or (every and trainer.global_step % every == 0):
            self._save(trainer, value=None)
        if self.reporter.stopping:
            raise Stopped

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """At the end of an epoch, when its validation is done.

        Raises:
            Stopped: after a stop.
        """
        epochs = trainer.current_epoch + 1
        stopping = self.reporter.stopping
        if (
            epochs % self.config.every_n_epochs == 0
            or epochs == self.plan.max_epochs
            or trainer.should_stop
            or stopping
        ):
            self._save(trainer, value=self.reporter.of_epoch.get(self.config.monitor))
        if stopping:
            raise Stopped

    def best(self, trainer: pl.Trainer) -> Path | None:
        """File of the checkpoint to test, the same on all ranks: the best one, else the newest, else None."""
        best = self.store.best() or self.newest if trainer.is_global_zero else None
        best = trainer.strategy.broadcast(best)
        return best.path / FILE if best else None

    def _save(self, trainer: pl.Trainer, value: float | None) -> None:
        """Write a checkpoint; `value` is the metric of `checkpoint.monitor` for these very weights."""
        step, epoch, batch = trainer.global_step, trainer.current_epoch, trainer.fit_loop.batch_idx + 1
        if batch == self.plan.train_batches:
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
