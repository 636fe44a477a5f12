"""Lightning's logger connector, changed to reduce logged values over ranks and to add an `epoch_over` hook."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from train_anywhere.training.lightning.dropin.logged_values import reduce_logged
from train_anywhere.training.lightning.loop.private import _LoggerConnector
from train_anywhere.training.reporting.metrics_csv import prefix_reserved_names


class Connector(_LoggerConnector):
    """Lightning's logger connector with three changes.

    Values of `self.log` are reduced over all ranks, in one exchange when they are read: at a logged step, at the end of a loop,
    and at the end of its hooks. `collected` has every metric of the last loop, including those logged only for callbacks.
    The hook `epoch_over` of callbacks is called when everything else of an epoch is done: the module's hooks, schedules that watch a
    metric, and the epoch's metrics. So a checkpoint that is saved there holds all of them.

    Attributes:
        collected: metrics by name, of the loop that ended last.
        logging: whether Lightning is passing metrics to the loggers right now.
        resumed: whether the metrics include batches of this epoch from before a resume.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        super().__init__(trainer)
        self.collected: dict[str, Any] = {}
        self.logging = False
        self.resumed = False
        self._reduced: set[str] = set()

    def should_reset_tensors(self, fx: str) -> bool:
        """Return whether metrics start anew: at the first batch, unless the epoch started before a resume."""
        return False if self.resumed else super().should_reset_tensors(fx)

    def on_batch_start(self, batch: Any, dataloader_idx: int | None = None) -> None:
        """Treat values that are logged from now on as this rank's own."""
        self._reduced = set()
        super().on_batch_start(batch, dataloader_idx)

    def update_train_step_metrics(self) -> None:
        """Log a training step if due."""
        self.resumed = False
        if self.should_update_logs:
            self._reduce(on_step=True)
        super().update_train_step_metrics()

    def update_eval_step_metrics(self, step: int) -> None:
        """Log an evaluation step."""
        self._reduce(on_step=True)
        super().update_eval_step_metrics(step)

    def epoch_end_reached(self) -> None:
        """Reduce the epoch's metrics after its last batch, before the hooks that may read them."""
        super().epoch_end_reached()
        self.resumed = False
        if self.trainer.training:
            # in a resumed epoch Lightning would not update schedules that watch a metric
            self.trainer.fit_loop._restarting = False
        elif not self.trainer._evaluation_loop._logged_outputs:  # the first of several loaders
            self.collected = {}
        self._reduce(on_step=False)

    def on_epoch_end(self) -> None:
        """Reduce again after the hooks, which may have logged more."""
        self._reduce(on_step=False)
        if self.trainer.training:
            self.collected = {}
        super().on_epoch_end()
        self.collected |= self.metrics["callback"]

    def update_eval_epoch_metrics(self) -> Any:
        """Collect the metrics at the end of an evaluation or of one of its loaders."""
        logged = super().update_eval_epoch_metrics()
        self.collected |= self.metrics["callback"]
        return logged

    def update_train_epoch_metrics(self) -> None:
        """Log the epoch's metrics, then call `epoch_over` of the callbacks: this is Lightning's last action in an epoch."""
        super().update_train_epoch_metrics()
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if hasattr(callback, "epoch_over"):
                callback.epoch_over(self.trainer, self.trainer.lightning_module)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Pass metrics to all loggers."""
        # Lightning's loggers use the metric "step" as their step
        axis = {"step": metrics["step"]} if "step" in metrics else {}
        self.logging = True
        try:
            super().log_metrics(prefix_reserved_names(metrics, self.trainer.is_global_zero) | axis, step)
        finally:
            self.logging = False

    def _reduce(self, on_step: bool) -> None:
        results = self.trainer._results
        if self.trainer.world_size > 1 and results is not None:
            self._reduced |= reduce_logged(results, self.trainer.strategy, on_step, self._reduced)
