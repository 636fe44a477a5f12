"""Where Lightning's metrics leave the loop: shared by all ranks first, and an end of an epoch that comes after everything else."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from train_anywhere.training.lightning.dropin.sharing import share
from train_anywhere.training.lightning.loop.private import _LoggerConnector
from train_anywhere.training.reporting.metrics_csv import renamed


class Connector(_LoggerConnector):
    """Lightning's own, with three differences.

    Values that `self.log` was given on one rank become those of all ranks, in one exchange where they are read: a step that is logged,
    the end of a loop, the end of its hooks. `collected` has every metric of the loop that has just ended, also what was logged for
    callbacks alone. And `epoch_over` of callbacks comes when an epoch has really ended: after the hooks of the module, the schedules
    that watch a metric, and the epoch's own metrics; a checkpoint of that moment holds all of them.

    Attributes:
        collected: metrics by name, of the loop that has ended last.
        logging: Lightning is just handing metrics to the loggers.
        resumed: the metrics hold those of an epoch's batches before a resume.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        super().__init__(trainer)
        self.collected: dict[str, Any] = {}
        self.logging = False
        self.resumed = False
        self._shared: set[str] = set()

    def should_reset_tensors(self, fx: str) -> bool:
        """At the first batch; but not of an epoch that was begun before a resume."""
        return False if self.resumed else super().should_reset_tensors(fx)

    def on_batch_start(self, batch: Any, dataloader_idx: int | None = None) -> None:
        """What is logged from now on is this rank's alone."""
        self._shared = set()
        super().on_batch_start(batch, dataloader_idx)

    def update_train_step_metrics(self) -> None:
        """Log a training step, if it is due."""
        self.resumed = False
        if self.should_update_logs:
            self._share(on_step=True)
        super().update_train_step_metrics()

    def update_eval_step_metrics(self, step: int) -> None:
        """Log a step of an evaluation."""
        self._share(on_step=True)
        super().update_eval_step_metrics(step)

    def epoch_end_reached(self) -> None:
        """All batches are done; the hooks that may read their metrics follow."""
        super().epoch_end_reached()
        self.resumed = False
        if self.trainer.training:
            # a resumed epoch ends like any other: Lightning would not ask schedules that watch a metric
            self.trainer.fit_loop._restarting = False
        elif not self.trainer._evaluation_loop._logged_outputs:  # of several loaders, the first one ends
            self.collected = {}
        self._share(on_step=False)

    def on_epoch_end(self) -> None:
        """The hooks are done, and may have logged more."""
        self._share(on_step=False)
        if self.trainer.training:
            self.collected = {}
        super().on_epoch_end()
        self.collected |= self.metrics["callback"]

    def update_eval_epoch_metrics(self) -> Any:
        """The end of an evaluation, or of one of its loaders."""
        logged = super().update_eval_epoch_metrics()
        self.collected |= self.metrics["callback"]
        return logged

    def update_train_epoch_metrics(self) -> None:
        """The last that Lightning does in an epoch."""
        super().update_train_epoch_metrics()
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if hasattr(callback, "epoch_over"):
                callback.epoch_over(self.trainer, self.trainer.lightning_module)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Hand metrics to all loggers."""
        axis = (
            {"step": metrics["step"]} if "step" in metrics else {}
        )  # Lightning's loggers take it as their step
        self.logging = True
        try:
            super().log_metrics(renamed(metrics, self.trainer.is_global_zero) | axis, step)
        finally:
            self.logging = False

    def _share(self, on_step: bool) -> None:
        results = self.trainer._results
        if self.trainer.world_size > 1 and results is not None:
            self._shared |= share(results, self.trainer.strategy, on_step, self._shared)
