"""Loggers: TensorBoard, those of the configuration, and the one through which this project learns what a module logs."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger

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
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        loop_logs: bool = self.trainer._logger_connector.logging  # type: ignore[attr-defined]
        self.receiver(loop_logs, self.trainer, values)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run folder has its config.yaml."""
