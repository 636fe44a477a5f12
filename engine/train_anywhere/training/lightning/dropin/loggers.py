"""Adapters between Lightning's loggers and this project's metrics and trackers."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger

from train_anywhere.training.reporting.metrics_csv import prefix_reserved_names
from train_anywhere.training.tracking import GuardedLogger

Receiver = Callable[[bool, pl.Trainer, Mapping[str, float]], None]
"""Called with: whether the Trainer's loop logs (else a callback), the Trainer, and the values by name."""


class MetricsReceiver(Logger):
    """A logger that passes everything to `receiver`, on every rank.

    Attributes:
        trainer: the Trainer whose metrics are received.
    """

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self.receiver = receiver
        self.trainer: pl.Trainer | None = None

    @property
    def name(self) -> str:
        """Name of the logger, which writes no files."""
        return "received"

    @property
    def version(self) -> int:
        """A constant: this logger writes no files."""
        return 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Pass on metrics of Lightning's loop or of a callback."""
        if self.trainer is None or self.trainer.sanity_checking:
            return
        loop_logs: bool = self.trainer._logger_connector.logging  # type: ignore[attr-defined]
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        self.receiver(loop_logs, self.trainer, prefix_reserved_names(values, self.trainer.is_global_zero))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the run folder has its config.yaml."""


class TrackerLogger(Logger):
    """A logger that passes metrics to a tracker that is not a Lightning logger, such as those in `training/tracking`.

    The Trainer calls `finalize` after fit and again after test, so `train_anywhere.training.lightning.run` finalizes the tracker, once.
    """

    def __init__(self, tracked: GuardedLogger) -> None:
        super().__init__()
        self.tracked = tracked

    @property
    def name(self) -> str:
        """Name in the configuration."""
        return self.tracked.name

    @property
    def version(self) -> str:
        """An empty string: trackers have no version."""
        return ""

    @property
    def experiment(self) -> Any:
        """The tracker object that the configuration names."""
        return self.tracked.logger

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one point of each metric, without the epoch number that Lightning adds."""
        self.tracked.log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step or 0)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a tracker gets the configuration when it is created."""
