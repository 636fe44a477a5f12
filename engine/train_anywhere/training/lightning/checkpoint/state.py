"""When a checkpoint is saved, and what it holds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.manifest import CheckpointInfo, SavedCheckpoint, folder_name
from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.loader import BatchLoader
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files.removal import print_once
from train_anywhere.job.rank_process import TrainingStopped
from train_anywhere.training.early_stopping import checkpoint_score
from train_anywhere.training.lightning.checkpoint.contents import FILE, Buffers, Shards, keep_plain_values
from train_anywhere.training.lightning.checkpoint.rank_state import SHOWN, RankState
from train_anywhere.training.lightning.dropin.trainable import repeat_start_hooks
from train_anywhere.training.lightning.dropin.validated_weights import (
    ValidatedWeights,
    Weights,
    overrides,
    user_hooks,
    with_training_weights,
    with_validated_weights,
)
from train_anywhere.training.lightning.dropin.visible import RunCheckpoints
from train_anywhere.training.lightning.loop import steps
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback
from train_anywhere.training.lightning.private import logged_values, open_in_validation, reopen_loaders
from train_anywhere.training.plan import is_multiple


class CheckpointCallback(pl.Callback):
    """Saves every few epochs, steps or seconds, at the end, and at an agreed stop.

    Attributes:
        pending: whether a validation comes first, before or in which the run was stopped.
    """

    def __init__(self, writer: "StateWriter", metrics: MetricsCallback, seen: RunCheckpoints) -> None:
        self.weights = ValidatedWeights()
        self.rank_state = RankState(metrics.config.seed, metrics.course, metrics.progress.report)
        self.writer, self.metrics, self.seen, self.agreement = writer, metrics, seen, metrics.agreement
        self.config, self.course, self.plan = metrics.config, metrics.course, metrics.plan
        self.pending, self._loaded = False, dict[str, Any]()
        # of the checkpoint that is written: its validation is done, its epoch continues
        self._validated, self._continues = True, False
        self._seen: int | None = None  # batches of the epoch at the newest `between_steps`
        self._opened = 0  # the epoch of which the validation loaders are

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save whether a validation is still to be run, and whether it is that of the epoch's end."""
        checkpoint["validation_pending"] = not self._validated
        checkpoint["last_batch"] = steps.is_last_batch(trainer)
        checkpoint["ended"] = self.plan.total_steps if trainer.should_stop else 0
        checkpoint["continues"] = self._continues
        checkpoint["validation_loaders"] = self._opened

    def resume_training(self, trainer: Any, checkpoint: dict[str, Any]) -> None:
        """Resume at the checkpoint's position. The loaders are opened, because their length decides where that is."""
        if self.writer.newest is None:
            return  # LearningRateFinder restores a checkpoint of its own
        loop, self._loaded = trainer.fit_loop, checkpoint.get("callbacks", {})
        state = checkpoint["loops"]["fit_loop"]
        with random_states.preserve():  # a new run opens them after the validation loaders
            every, epoch = trainer.reload_dataloaders_every_n_epochs, self.writer.newest.epoch
            # the loaders are of this epoch
            loop.epoch_progress.current.completed = epoch - epoch % every if every else 0
            loop.setup_data()
            self.course.loaders_opened(trainer)
            start = self._restore_position(trainer, checkpoint, self.writer.newest)
            loop.load_state_dict(state)
            for loader in steps.training_loaders(trainer):
                if isinstance(loader, BatchLoader):
                    loader.sampler.start_at(*start)
            trainer.strategy.training_loaders.start_at(*start)
            if start[1]:
                reopen_loaders(trainer)
                # Lightning counts a step after its validation
                if steps.validation_follows(trainer):
                    state["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
                    loop.load_state_dict(state)
            else:  # no epoch restarts: Lightning opens the loaders after its start hooks, as in a new run
                loop.on_iteration_done()
                loop.epoch_loop.restarting = False
            self._opened = checkpoint.get("validation_loaders", start[0])
            if trainer.enable_validation:
                self._open_validation_loaders(trainer)

    def _open_validation_loaders(self, trainer: Any) -> None:
        """Open the validation loaders when an uninterrupted run would: that draws random numbers."""
        if self._opened < 0 and not trainer.reload_dataloaders_every_n_epochs:
            open_in_validation(trainer, lambda: self._seen is not None or trainer.sanity_checking)
            return
        loop = trainer.fit_loop.epoch_loop.val_loop
        current, stage = trainer.fit_loop.epoch_progress.current, trainer.state.stage
        now, current.completed = current.completed, self._opened
        trainer.validating = True
        loop.setup_data()
        current.completed, trainer.state.stage = now, stage

    def training_started(self, trainer: pl.Trainer) -> None:
        """Call the start hooks of an epoch in which the run resumes."""
        repeat_start_hooks(trainer, self._loaded)
        self._loaded, self._seen = {}, trainer.fit_loop.batch_idx + 1

    def _restore_position(
        self, trainer: pl.Trainer, checkpoint: dict[str, Any], saved: SavedCheckpoint
    ) -> tuple[int, int]:
        """Set Lightning's counters in the checkpoint. Return the epoch and batch to start with."""
        waits = bool(checkpoint.get("validation_pending"))
        waits_last = waits and checkpoint["last_batch"]
        ranks, epochs = len(checkpoint["rank_states"]) / trainer.world_size, trainer.fit_loop.max_epochs
        if all(isinstance(loader, BatchLoader) for loader in steps.training_loaders(trainer)):
            ranks = 1.0  # its batches are the same on any number of ranks
        over = 0 <= trainer.max_steps <= checkpoint["global_step"]
        epoch, batch = steps.resume_position(saved, self.plan, epochs or 0, ranks, waits_last, over)
        self.course.stopped = checkpoint.get("ended") == self.plan.total_steps
        if self.course.stopped and not (waits or checkpoint.get("continues")) and batch:
            epoch, batch = epoch + 1, 0  # the epoch was over for all hooks
        last = batch > 0 and waits_last
        self.pending = last or (waits and (epoch, batch) == (saved.epoch, saved.batch))
        if any(isinstance(callback, ModelPruning) for callback in trainer.callbacks):
            self.metrics.progress.note(
                "ModelPruning: a checkpoint has the pruned weights without their masks, so a resumed run starts the pruning again."
            )
        counters, done = checkpoint["loops"]["fit_loop"], self.course.steps_done
        steps.set_loop_counters(counters, epoch, batch, last, done, self.pending)
        return epoch, batch

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check before the first step that checkpoints can hold the state.

        Raises ConfigError for a schedule that steps after the checkpoint, CheckpointError for an object that can't be saved.
        """
        every, later = trainer.reload_dataloaders_every_n_epochs, (trainer.check_val_every_n_epoch or 1) > 1
        if self.writer.newest is None and later and (every or trainer.val_dataloaders is None):
            self._opened = -(every or 1)  # Lightning opens them in the first validation
        # StochasticWeightAveraging adds one
        fast, settings = self.config.trainer.fast_dev_run, self.config.trainer
        trainer.fit_loop.max_epochs = 1 if fast else settings.max_epochs
        if (self.agreement.timer.was_over or self.course.stopped) and not self.pending:
            self.course.end(trainer)
        self.course.stopped &= self.pending
        watching = [c for c in trainer.lr_scheduler_configs if c.reduce_on_plateau and c.interval == "step"]
        if watching and pl_module.automatic_optimization:
            raise ConfigError(
                f"configure_optimizers returns a {type(watching[0].scheduler).__name__} that watches {watching[0].monitor} with "
                "interval='step', and a checkpoint within an epoch would hold its state of the previous step; use interval='epoch'."
            )
        data, choice = trainer.datamodule, self.config.checkpoint.other_objects
        restores = (data and overrides(data, "load_state_dict")) or user_hooks(trainer, "on_load_checkpoint")
        self.writer.refuse_objects(choice == "refuse" or (choice is None and restores))
        if data or user_hooks(trainer, "on_save_checkpoint"):
            with random_states.preserve(), _metrics_kept(trainer):
                checkpoint = dict[str, Any]()
                trainer.save_checkpoint(FILE, weights_only=True, storage_options=checkpoint.update)
                for callback in trainer.callbacks:
                    if not type(callback).__module__.startswith("train_anywhere."):
                        callback.on_save_checkpoint(trainer, pl_module, checkpoint)
            self.writer.plain(checkpoint)

    def between_steps(self, trainer: Any) -> None:
        """Save or raise TrainingStopped if due, after a batch and a validation within the epoch."""
        batches = trainer.fit_loop.batch_idx + 1
        starts = self._seen is None or batches == 0
        if starts or not trainer.training or (batches == self._seen and not self.metrics.mid_epoch):
            return
        self._seen = batches
        self.writer.check()
        validated, self.metrics.mid_epoch = self.metrics.mid_epoch, False
        if validated:
            self.metrics.validation_over(trainer, trainer.lightning_module)
        if not steps.accumulates(trainer):  # a checkpoint does not hold accumulated gradients
            if self._is_due(trainer.current_epoch + 1 if validated else None):
                self._write_state(trainer, self._monitored_value() if validated else None, continues=True)
            self._raise_if_stopping()
        if validated:
            self.weights.forget()

    def _is_due(self, epochs: int | None) -> bool:
        """Return whether a checkpoint is due after a step, or after so many `epochs`."""
        agreed, every = self.agreement, self.config.checkpoint.every_n_epochs
        due = agreed.observers.reach(self.course.steps_done) or agreed.stopping or agreed.saving
        return due or (epochs is not None and is_multiple(epochs, every))

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """Save or stop here if steps read the batches themselves."""
        over = steps.is_stopping(trainer) or steps.is_last_batch(trainer) or steps.are_over(trainer)
        if trainer.strategy.steps_read and not over and not steps.validation_follows(trainer):
            self.between_steps(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Follow when Lightning opens the validation loaders."""
        every, epoch = trainer.reload_dataloaders_every_n_epochs, trainer.current_epoch
        if self._opened < 0 or (every and epoch - self._opened >= every):
            self._opened = epoch

    def on_validation_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        """Raise TrainingStopped if requested, unless hooks have swapped weights."""
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            self._raise_if_stopping()
        elif not self.weights.swapped:
            self.before_validation(trainer)

    def before_validation(self, trainer: Any) -> None:
        """Raise TrainingStopped if requested, before or in a validation, with which the run resumes."""
        between = steps.is_last_batch(trainer) or (self.metrics.mid_epoch and not steps.accumulates(trainer))
        if self.agreement.stopping and between and not steps.are_over(trainer):
            self.metrics.metrics.update(self.metrics.epoch_metrics)  # of the last step
            self._write_state(trainer, value=None, validated=False)
            raise TrainingStopped

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save or raise TrainingStopped if due, at the end of an epoch and of all hooks."""
        epochs = steps.newest_epoch(trainer) + 1
        over = steps.is_stopping(trainer) or epochs == trainer.max_epochs or steps.are_over(trainer)
        if over or self._is_due(epochs):
            self._write_state(trainer, value=self._monitored_value())
        self.seen.end_epoch(over)
        self._raise_if_stopping()

    def save_again(self, checkpoint: dict[str, Any], weights: Weights) -> None:
        """Replace the newest checkpoint by one with weights that hooks changed. Raises OSError."""
        state = with_validated_weights(with_training_weights(checkpoint), weights)
        self.writer.write_again(state, dict(self.metrics.metrics), self._monitored_value())

    def _raise_if_stopping(self, *args: Any) -> None:
        if self.agreement.stopping:
            raise TrainingStopped

    on_test_batch_start = _raise_if_stopping  # there is nothing to save

    def _monitored_value(self) -> float | None:
        """Return the monitored value, or None if it was not measured at this step."""
        if not (monitor := self.config.checkpoint.monitor):
            return None
        return checkpoint_score(self.metrics.monitored_metrics("checkpoint.monitor", monitor), monitor)

    def _write_state(
        self, trainer: pl.Trainer, value: float | None, validated: bool = True, continues: bool = False
    ) -> None:
        """Save a checkpoint, with the monitored value of exactly these weights."""
        step, epoch = self.course.steps_done, steps.newest_epoch(trainer)
        batch = trainer.fit_loop.batch_idx + 1
        if steps.is_last_batch(trainer) and validated:
            epoch, batch = epoch + 1, 0
        start, self._validated, self._continues = time.monotonic(), validated, continues
        with self.metrics.heartbeat.within("checkpoint"):
            self.writer.wait()
            known, seconds = dict(self.metrics.metrics), self.agreement.timer.seconds
            info = CheckpointInfo(step, epoch, batch, known, value, "lightning", seconds=seconds)
            # training continues with the same random numbers as without a save, of which hooks may draw some
            self.rank_state.keep_states(trainer)
            with random_states.preserve():
                trainer.save_checkpoint(FILE, weights_only=False, storage_options=info)  # all ranks call it
            if not trainer.validating:
                self.rank_state.release_states()
        self.seen.follow(Path(str(self.seen.dirpath), folder_name(step), FILE), value)
        self.agreement.saved(step, time.monotonic() - start)


@contextmanager
def _metrics_kept(trainer: pl.Trainer) -> Iterator[None]:
    """Undo what hooks change that read metrics before training, when there are none yet."""
    before = [(metric, dict(vars(metric))) for metric in logged_values(trainer).values()]
    yield
    for kind in SHOWN:
        getattr(trainer, kind).clear()
    for metric, attributes in before:
        vars(metric).update(attributes)


class StateWriter(TorchCheckpointIO):
    """Copies the Trainer's state, which the checkpointer writes while training continues.

    Only rank 0 has a checkpointer, and updates `newest`, but all ranks take part in saving. `shards` writes this rank's part of the
    weights, if they are split over the ranks.
    """

    def __init__(
        self, checkpointer: AsyncCheckpointer | None, shards: Shards | None, saved: SavedCheckpoint | None
    ) -> None:
        self.checkpointer, self.shards, self.newest = checkpointer, shards, saved
        self.buffers = Buffers()
        self._refuses = True

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Copy the collected state and start writing it. Raises CheckpointError for a needed value that can't be saved.

        `storage_options` is the `CheckpointInfo`; None: `path` is a checkpoint of user code.
        """
        if storage_options is None:
            super().save_checkpoint(checkpoint, path)
            return
        checkpoint = self.plain(checkpoint)
        if self.shards:
            self.shards.write(checkpoint)
        if self.checkpointer:
            self.buffers.fill(checkpoint)
            self.checkpointer.save(self._write, storage_options)

    def refuse_objects(self, refuses: bool) -> None:
        """Refuse objects of a user's hook that are not plain data, or leave them out."""
        self._refuses = refuses

    def write_again(self, state: dict[str, Any], metrics: dict[str, float], value: float | None) -> None:
        """Replace the newest checkpoint by one with this state. Raises OSError."""
        assert self.checkpointer and self.newest
        self.buffers.fill(state)
        info = replace(self.newest, metrics=metrics, value=value)
        self.newest = self.checkpointer.write_again(self._write, info)

    def plain(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Return the part of the state that can be saved, see `keep_plain_values`."""
        report = print_once if self.checkpointer else lambda line: None
        return keep_plain_values(checkpoint, report, self._refuses)

    def check(self) -> None:
        """Raise CheckpointError if an earlier checkpoint was not written. Each step calls this."""
        if self.checkpointer:
            self.checkpointer.check()

    def wait(self) -> None:
        """Wait until the buffers may be filled again. Raises CheckpointError as `check`."""
        if self.checkpointer:
            self.checkpointer.wait()
        if self.shards:
            self.shards.wait()

    def close(self) -> None:
        """Wait until all checkpoints are in the run folder. Raises CheckpointError if one can't be written."""
        lost = self.shards.wait() if self.shards else None
        if self.checkpointer:
            self.checkpointer.finish()
            self.newest = self.checkpointer.newest or self.newest
            if self.shards:
                self.shards.clear()
        if lost:
            raise CheckpointError(lost)

    def best(self, trainer: pl.Trainer) -> Path | None:
        """Return the file of the checkpoint to test, the same on all ranks, or None."""
        self.close()
        found = self.checkpointer.store.best() if self.checkpointer else None
        found = trainer.strategy.broadcast(found)
        return found.path / FILE if found else None

    def _write(self, folder: Path) -> None:
        """Write the files of a checkpoint. After a disk error this may be called again."""
        if self.shards:
            self.shards.link(folder)
        self.buffers.write(folder / FILE)
