"""When a checkpoint is saved, and what is in it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.training.lightning.checkpoint.buffers import Buffers
from train_anywhere.training.lightning.checkpoint.plain import with_plain_values
from train_anywhere.training.lightning.checkpoint.position import resume_position, set_loops, steps_done
from train_anywhere.training.lightning.checkpoint.shards import Shards
from train_anywhere.training.lightning.dropin.measured import Weights, with_measured, without_measured
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback
from train_anywhere.training.lightning.loop.fast_loop import overrides
from train_anywhere.training.monitored import judged
from train_anywhere.training.plan import Plan, validation_due

FILE = "model.ckpt"
"""Lightning's file in the folder of a checkpoint: weights, optimizer, schedule, loops, random states."""

METADATA = ".metadata"
"""The file that says which weights are in which shard, in the folder of a sharded checkpoint."""


class Stopped(Exception):
    """Leaves the Trainer when the ranks have agreed to stop and the checkpoint is written."""


class CheckpointCallback(pl.Callback):
    """When to save: every few epochs, steps or seconds, at the end, and when the ranks have agreed to stop.

    Args:
        writer: what is saved; `trainer.save_checkpoint` reaches it as the strategy's `checkpoint_io`.
        saved: the checkpoint that the run resumes from.

    Attributes:
        start: epoch and batch to begin with.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        writer: "StateWriter",
        metrics: MetricsCallback,
        saved: SavedCheckpoint | None,
    ) -> None:
        self.config, self.plan, self.writer = config, plan, writer
        self.metrics = metrics
        self.start = resume_position(saved, config.trainer, plan)
        if saved:
            metrics.resume(saved.metrics)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Resume at the position that the manifest names."""
        set_loops(checkpoint["loops"]["fit_loop"], *self.start, self.plan.train_batches, steps_done(trainer))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check what a checkpoint will hold, before the first step.

        Raises:
            ConfigError: a schedule that Lightning moves on only after the checkpoint of a step.
            CheckpointError: an object that no checkpoint can hold.
        """
        trainer.fit_loop.max_epochs = self.plan.max_epochs  # StochasticWeightAveraging adds one
        watching = [c for c in trainer.lr_scheduler_configs if c.reduce_on_plateau and c.interval == "step"]
        if watching and pl_module.automatic_optimization:
            raise ConfigError(
                f"configure_optimizers gives a {type(watching[0].scheduler).__name__} that watches {watching[0].monitor} with "
                "interval='step', and a checkpoint within an epoch would hold the schedule of the step before; use interval='epoch'."
            )
        added = (
            c for c in trainer.callbacks if not type(c).__module__.startswith("train_anywhere.training.")
        )  # type: ignore[attr-defined]
        users, data = [pl_module, *added], trainer.datamodule  # type: ignore[attr-defined]
        hooks = [(one, "on_load_checkpoint") for one in users] + ([(data, "load_state_dict")] if data else [])
        chosen = self.config.checkpoint.other_objects
        self.writer.refuses = chosen == "refuse" or (chosen is None and any(overrides(*h) for h in hooks))
        if not data and not any(overrides(one, "on_save_checkpoint") for one in users):
            return
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
        for callback in users[1:]:
            callback.on_save_checkpoint(trainer, pl_module, checkpoint)
        self.writer.plain(checkpoint)

    def after_batch(self, trainer: pl.Trainer, batch_idx: int) -> None:
        """After an optimizer step within an epoch, and all hooks of its batch; at an epoch's end the validation comes first.

        Raises:
            Stopped: after a stop.
        """
        self.writer.check()
        last = batch_idx + 1 == self.plan.train_batches
        if last and validation_due(
            self.config.trainer, self.plan, trainer.current_epoch, steps_done(trainer)
        ):
            self._interrupt_validation(trainer)
        if last or trainer.should_stop or (batch_idx + 1) % self.plan.accumulate:
            return
        if self.metrics.stopping or self.metrics.saving or self.metrics.observers.due(steps_done(trainer)):
            self._save(trainer, value=None)
        self._leave_if_stopping()

    def on_validation_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        """A stop interrupts a validation, unless hooks have exchanged weights until its end.

        Raises:
            Stopped: after a stop.
        """
        if trainer.state.fn != TrainerFn.FITTING:
            self._leave_if_stopping()
        elif not trainer.one_model.exchanged and trainer.fit_loop.batch_idx + 1 == self.plan.train_batches:  # type: ignore[attr-defined]
            self._interrupt_validation(trainer)

    def _interrupt_validation(self, trainer: pl.Trainer) -> None:
        if self.metrics.stopping:  # the run resumes with the validation
            self.metrics.metrics |= {} if self.metrics.native else self.metrics.of_epoch  # of the last step
            self._save(trainer, value=None, validated=False)
            raise Stopped

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """At the end of an epoch, after its validation and all hooks.

        Raises:
            Stopped: after a stop.
        """
        epochs = trainer.current_epoch + 1
        over = trainer.should_stop or epochs == self.plan.max_epochs
        if over or self.metrics.stopping or epochs % self.config.checkpoint.every_n_epochs == 0:
            self._save(trainer, value=self._value())
        self._leave_if_stopping()

    def save_again(self, checkpoint: dict[str, Any], weights: Weights) -> None:
        """Replace the newest checkpoint, of these contents, by one with the weights that hooks have left; on rank 0. Raises OSError."""
        assert self.writer.checkpointer and self.writer.newest
        self.writer.buffers.fill(with_measured(without_measured(checkpoint), weights))
        info = replace(self.writer.newest, metrics=dict(self.metrics.metrics), value=self._value())
        self.writer.newest = self.writer.checkpointer.write_again(self.writer._write, info)

    def on_test_batch_start(self, *args: Any) -> None:
        """A stop interrupts the test too, with nothing to save.

        Raises:
            Stopped: after a stop.
        """
        self._leave_if_stopping()

    def _leave_if_stopping(self) -> None:
        if self.metrics.stopping:
            raise Stopped

    def _value(self) -> float | None:
        """By which the checkpoint may be the best; None if nobody says by which metric, or it was not measured."""
        monitor = self.config.checkpoint.monitor
        return judged(self.metrics.judged("checkpoint.monitor", monitor), monitor) if monitor else None

    def _save(self, trainer: pl.Trainer, value: float | None, validated: bool = True) -> None:
        """Save; `value` is the metric of `checkpoint.monitor` for these very weights."""
        step, epoch, batch = steps_done(trainer), trainer.current_epoch, trainer.fit_loop.batch_idx + 1
        if batch == self.plan.train_batches and validated:
            epoch, batch = epoch + 1, 0
        began = time.monotonic()
        with heartbeat.within("checkpoint"):
            self.writer.wait()
            info = CheckpointInfo(step, epoch, batch, dict(self.metrics.metrics), value, "lightning")
            trainer.save_checkpoint(FILE, weights_only=False, storage_options=info)  # all ranks call it
        self.metrics.observers.after_checkpoint(time.monotonic() - began)
        self.metrics.saving = False


class StateWriter(TorchCheckpointIO):
    """What is saved: a copy of the Trainer's state, which the checkpointer writes while training continues.

    Args:
        checkpointer: writes checkpoints; all ranks take part, rank 0 alone has one.
        shards: writes this rank's part of the weights, if they are split over the ranks.
        saved: the checkpoint that the run resumes from.

    Attributes:
        newest: the newest checkpoint; only rank 0 knows of those written since.
        refuses: whether an object of a user's hook that is not plain data is an error; else it is left out.
    """

    def __init__(
        self, checkpointer: AsyncCheckpointer | None, shards: Shards | None, saved: SavedCheckpoint | None
    ) -> None:
        self.checkpointer, self.shards, self.newest = checkpointer, shards, saved
        self.buffers = Buffers()
        self.refuses = True
        self._told: set[str] = set()
        # of the checkpoint whose shards are being written; and why those before it could not be written
        self._info: CheckpointInfo | None = None
        self._lost: str | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Take a copy of the state that `trainer.save_checkpoint` has collected, and begin to write it.

        Args:
            path: not used; the checkpointer knows the folder.
            storage_options: the `CheckpointInfo` of its manifest; without one it is somebody else's checkpoint, in a file of its own.

        Raises:
            CheckpointError: it can't hold something that the training needs.
        """
        if storage_options is None:
            super().save_checkpoint(checkpoint, path)
            return
        checkpoint = self.plain(checkpoint)
        if self.shards:
            if self.checkpointer:
                self.shards.clear()
            self.shards.write(checkpoint, storage_options.step)
            self._info = storage_options
        if self.checkpointer:
            self.buffers.fill(checkpoint)
            if not self.shards:
                self.checkpointer.save(self._write, storage_options)

    def plain(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Return what can be saved, see `with_plain_values`."""
        return with_plain_values(checkpoint, self._tell, self.refuses)

    def check(self) -> None:
        """Costs nothing; called at each step. Raises CheckpointError if an earlier checkpoint could not be written."""
        if self.checkpointer:
            self.checkpointer.check()
        if self.shards and not self.shards.writing:
            self.publish_shards()

    def wait(self) -> None:
        """Return when the buffers may be filled again. Raises CheckpointError as `check`."""
        self.publish_shards()
        if self.checkpointer:
            self.checkpointer.wait()

    def publish_shards(self) -> None:
        """Publish the checkpoint whose shards all ranks have written; report it if a disk refused one.

        Raises:
            CheckpointError: another error has ended the writing.
        """
        if not self.shards or not self._info:
            return
        info, self._info = self._info, None
        self._lost = self.shards.wait()
        if self.checkpointer and self._lost:
            self.checkpointer.tell(f"{self._lost}; continuing without it.")
        elif self.checkpointer:
            self.checkpointer.save(self._write, info)

    def close(self) -> None:
        """Wait until all checkpoints are in the run folder. Raises CheckpointError if one can't be written."""
        self.publish_shards()
        if self.checkpointer:
            self.checkpointer.finish()
            self.newest = self.checkpointer.newest or self.newest
            if self.shards:
                self.shards.clear()
        if self._lost:
            raise CheckpointError(self._lost)

    def best(self, trainer: pl.Trainer) -> Path | None:
        """File of the checkpoint to test, the same on all ranks: the best one, else the newest, else None."""
        self.close()
        found = self.checkpointer.store.best() if self.checkpointer else None
        found = trainer.strategy.broadcast(found)
        return found.path / FILE if found else None

    def _tell(self, line: str) -> None:
        if line not in self._told and self.checkpointer:
            self._told.add(line)
            self.checkpointer.tell(line)

    def _write(self, folder: Path) -> None:
        """The files of a checkpoint; the checkpointer may call it again after a disk error."""
        if self.shards:
            self.shards.link(folder)
        self.buffers.write(folder / FILE)
