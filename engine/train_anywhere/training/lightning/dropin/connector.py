"""Lightning's logger connector, changed to reduce logged values over ranks and to add an `epoch_over` hook."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger

from train_anywhere.training.lightning.dropin.logged_values import reduce_logged
from train_anywhere.training.lightning.dropin.loggers import receive_calls
from train_anywhere.training.lightning.loop.private import _LoggerConnector
from train_anywhere.training.reporting.metrics_csv import prefix_reserved_names

Receiver = Callable[[bool, pl.Trainer, Mapping[str, float]], None]
"""Called with: whether the Trainer's loop logs (else a callback), the Trainer, and the values by name."""


class Connector(_LoggerConnector):
    """Lightning's logger connector with three changes.

    Values of `self.log` are reduced over all ranks, in one exchange when they are read: at a logged step, at the end of a loop,
    and at the end of its hooks. `collected` has every metric of the last loop, including those logged only for callbacks.
    The hook `epoch_over` of callbacks is called when everything else of an epoch is done: the module's hooks, schedules that watch a
    metric, and the epoch's metrics. So a checkpoint that is saved there holds all of them.
    A receiver gets all values that are passed to the loggers, without being one of them.

    Args:
        trainer: the Trainer.
        monitors: names of the metrics that the configuration monitors.

    Attributes:
        collected: metrics by name, of the loop that ended last.
    """

    def __init__(self, trainer: pl.Trainer, monitors: Iterable[str]) -> None:
        super().__init__(trainer)
        self.monitors = [*monitors]
        self.collected: dict[str, Any] = {}
        self._logging = False
        self._receive: Receiver = lambda *_: None
        self._reduced: set[str] = set()
        self._step_reduced = False

    def on_batch_start(self, batch: Any, dataloader_idx: int | None = None) -> None:
        """Treat values that are logged from now on as this rank's own."""
        self._reduced, self._step_reduced = set(), False
        super().on_batch_start(batch, dataloader_idx)

    def update_train_step_metrics(self) -> None:
        """Log a training step if due."""
        if self.should_update_logs:
            self._reduce(on_step=True)
            self._step_reduced = True
        super().update_train_step_metrics()

    def update_eval_step_metrics(self, step: int) -> None:
        """Log an evaluation step, without an exchange if it has no value: the ranks may have different numbers of batches."""
        if any(metric.meta.on_step for metric in self.trainer._results.values()):  # type: ignore[union-attr]
            self._reduce(on_step=True)
        super().update_eval_step_metrics(step)

    def epoch_end_reached(self) -> None:
        """Reduce the epoch's metrics after its last batch, before the hooks that may read them."""
        super().epoch_end_reached()
        if self.trainer.training:
            # in a resumed epoch Lightning would not update schedules that watch a metric
            self.trainer.fit_loop._restarting = False
        elif not self.trainer._evaluation_loop._logged_outputs:  # the first of several loaders
            self.collected = {}
        self._reduce(on_step=False)

    def on_epoch_end(self) -> None:
        """Reduce again after the hooks, which may have logged more, and collect the values of the last training step."""
        self._reduce(on_step=False)
        if self.trainer.training:
            if not self._step_reduced:
                self._reduce(on_step=True)
            steps = [m for m in self.trainer._results.values() if not m.has_reset and not m.meta.on_epoch]  # type: ignore[union-attr]
            self.collected = {m.meta.name: m._forward_cache for m in steps if m._forward_cache is not None}
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

    def connect(self, loggers: Iterable[Logger], receive: Receiver) -> None:
        """Give the Trainer its loggers, and all values that it or user code logs to the receiver, on every rank."""
        self.trainer.loggers = [receive_calls(logger, self._receive_call) for logger in loggers]
        self._receive = receive

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Pass metrics to all loggers and to the receiver."""
        # Lightning's loggers use the metric "step" as their step
        axis = {"step": metrics["step"]} if "step" in metrics else {}
        named = prefix_reserved_names(metrics, self.trainer.is_global_zero)
        with self._own_calls():
            super().log_metrics(named | axis, step)
        tunes = any(
            isinstance(logger, DummyLogger) for logger in self.trainer.loggers
        )  # as LearningRateFinder
        if metrics and not (self.trainer.sanity_checking or tunes):
            self._receive(True, self.trainer, _numbers(named))

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """Pass metrics of this project's loop to all loggers."""
        with self._own_calls():
            for logger in self.trainer.loggers:
                logger.log_metrics(metrics, step=step)  # type: ignore[arg-type]
                logger.save()

    @contextmanager
    def metrics_kept(self) -> Iterator[None]:
        """Undo what hooks change that read metrics: Lightning then computes those of an epoch before its end."""
        known = (self._callback_metrics, self._logged_metrics, self._progress_bar_metrics)
        before = [dict(metrics) for metrics in known]
        computed = [(metric, metric._computed) for metric in (self.trainer._results or {}).values()]
        yield
        for metric, value in computed:
            metric._computed = value
        for metrics, values in zip(known, before, strict=True):
            metrics.clear()
            metrics.update(values)

    @contextmanager
    def _own_calls(self) -> Iterator[None]:
        self._logging = True
        try:
            yield
        finally:
            self._logging = False

    def _receive_call(self, metrics: Mapping[str, Any]) -> None:
        """Receive what a callback or module passes to a logger itself, such as LearningRateMonitor."""
        if not self._logging and not self.trainer.sanity_checking:
            values = _numbers({name: value for name, value in metrics.items() if name != "epoch"})
            self._receive(False, self.trainer, prefix_reserved_names(values, self.trainer.is_global_zero))

    def _reduce(self, on_step: bool) -> None:
        results = self.trainer._results
        if self.trainer.world_size > 1 and results is not None:
            self._reduced |= reduce_logged(
                results, self.trainer.strategy, on_step, self._reduced, self.monitors
            )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }
