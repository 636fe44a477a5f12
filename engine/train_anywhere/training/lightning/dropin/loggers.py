"""Loggers: TensorBoard, those of the configuration, and the one through which this project learns what a module logs."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger

from train_anywhere.training.reporting.metrics_csv import renamed
from train_anywhere.training.tracking import Tracked

Receiver = Callable[[bool, pl.Trainer, Mapping[str, float]], None]
"""Gets: whether the Trainer's own loop logs, else a callback; the Trainer; values by name."""


class Received(Logger):
    """Hands everything that is logged to `receiver`, on every rank.

    Attributes:
        trainer: whose metrics they are.
    """

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self.receiver = receiver
        self.trainer: pl.Trainer | None = None

    @property
    def name(self) -> str:
        """Of no file."""
        return "received"

    @property
    def version(self) -> int:
        """Always the same."""
        return 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Lightning, and callbacks, call this."""
        if self.trainer is None or self.trainer.sanity_checking:
            return
        loop_logs: bool = self.trainer._logger_connector.logging  # type: ignore[attr-defined]
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        self.receiver(loop_logs, self.trainer, renamed(values, self.trainer.is_global_zero))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run folder has its config.yaml."""


class Tracks(Logger):
    """Hands metrics to a tracker that is no logger of Lightning's, such as those in `training/tracking`.

    The Trainer calls `finalize` after fit and again after test; the tracker is told once, by `train_anywhere.training.lightning.run`.
    """

    def __init__(self, tracked: Tracked) -> None:
        super().__init__()
        self.tracked = tracked

    @property
    def name(self) -> str:
        """As in the configuration."""
        return self.tracked.name

    @property
    def version(self) -> str:
        """None of ours."""
        return ""

    @property
    def experiment(self) -> Any:
        """The object that the configuration names."""
        return self.tracked.logger

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """One point of each metric; the number of the epoch, which Lightning adds, is not one."""
        self.tracked.log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step or 0)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """A tracker is given the configuration when it is made."""
