"""Calls at moments for which the Trainer has no hook."""

from collections.abc import Callable

import lightning.pytorch as pl

from train_anywhere.training.lightning.private import without_max_steps


class Moments(pl.Callback):
    """The first of all callbacks.

    Args:
        opened: called when the training loaders are open.
        epoch_over: called after an epoch: all its hooks are over, its metrics are logged, and schedules that watch a metric have made
            their step. So a checkpoint that is saved there holds all of them.
    """

    def __init__(
        self,
        opened: Callable[[pl.Trainer], None],
        *epoch_over: Callable[[pl.Trainer, pl.LightningModule], None],
    ) -> None:
        self._opened, self._epoch_over = opened, epoch_over
        self._is_over = self._started = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the loaders are open."""
        self._started = True
        self._opened(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the batches of an epoch are over."""
        with without_max_steps(
            trainer
        ):  # in a resumed epoch Lightning would not update schedules that watch a metric
            trainer.fit_loop.restarting = False
        self._is_over = True

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call the functions for the epoch before."""
        if self._is_over:
            self._is_over = False
            for call in self._epoch_over:
                call(trainer, pl_module)

    on_train_end = on_train_epoch_start

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the state, and call the end hooks, if nothing was left to train: Lightning leaves them out."""
        self._opened(trainer)
        if trainer.ckpt_path and not self._started:
            trainer.strategy.on_train_start()
            for callback in trainer.callbacks:
                callback.on_train_end(trainer, pl_module)
            pl_module.on_train_end()
