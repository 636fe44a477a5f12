"""Loggers of the configuration as the Trainer and user code see them, and a listener to what they get."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment
from torch import Tensor

from train_anywhere.training.tracking import GuardedLogger


class RunLogger(Logger):
    """A logger of the run without a tracker. Values of user code go to metrics.csv.

    Args:
        name: name in the configuration.
        tracked: the tracker, only on rank 0; the Trainer calls `finalize` after fit and again after test, so
            `train_anywhere.training.lightning.fit` calls `close` instead.
    """

    def __init__(self, name: str, folder: Path, version: str, tracked: GuardedLogger | None = None) -> None:
        super().__init__()
        self._run_name, self._folder, self._run_version, self.tracked = name, folder, version, tracked

    @property
    def name(self) -> str:
        """Name in the configuration."""
        return self._run_name

    @property
    def version(self) -> str:
        """Id of the run."""
        return self._run_version

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self._folder)

    log_dir = save_dir

    @property
    def experiment(self) -> Any:
        """W&B's Run, MLflow's client, or the configured object. A dummy on other ranks."""
        if not self.tracked:
            return DummyExperiment()
        return getattr(self.tracked.logger, "experiment", self.tracked.logger)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, for calls of its client."""
        return getattr(self.tracked and self.tracked.logger, "id", None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one point of each metric, without the epoch number that Lightning adds."""
        if self.tracked:
            self.tracked.log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step or 0)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: trackers and the run folder have the configuration already."""

    after_save_checkpoint = finalize = log_hyperparams

    def close(self, state: str) -> None:
        """Close the tracker. The `state` is completed, preempted or failed."""
        if self.tracked:
            self.tracked.finalize(state)


class RunWandb(RunLogger, WandbLogger):
    """The same as a WandbLogger, with its `log_image`, `watch` and others, for `loggers=wandb`."""


Receiver = Callable[[bool, pl.Trainer, Mapping[str, float]], None]
"""Called with: whether the Trainer's loop logs (else a callback), the Trainer, and the values by name."""


def listen(trainer: pl.Trainer, loggers: Iterable[Logger], receive: Receiver) -> None:
    """Give the Trainer its loggers, and `receive` on every rank the numbers that they get, once for each call of the Trainer."""
    trainer.loggers = [*loggers]
    for number, logger in enumerate(trainer.loggers):
        logger.log_metrics = _receiving(logger.log_metrics, trainer, receive, number == 0)  # type: ignore[method-assign]


def _receiving(
    log_metrics: Callable[..., Any], trainer: pl.Trainer, receive: Receiver, first: bool
) -> Callable[..., Any]:
    def received(*arguments: Any, **named: Any) -> Any:
        frame: Any = inspect.currentframe()
        looping = str(frame.f_back.f_globals.get("__name__")).startswith("lightning.pytorch.trainer.")
        values = _numbers(named["metrics"] if "metrics" in named else arguments[0])
        if looping and values.get("epoch") == trainer.current_epoch:
            del values["epoch"]  # Lightning adds it
        if not trainer.sanity_checking and (first or not looping):
            receive(looping, trainer, values)
        return log_metrics(*arguments, **named)

    return received


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    }
