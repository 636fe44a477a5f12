"""Adapters between Lightning's loggers and this project's metrics and trackers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment

from train_anywhere.training.tracking import GuardedLogger


class RunLogger(Logger):
    """A logger of the run without a tracker: values of user code go to metrics.csv, see `receive_calls`.

    Args:
        name: name in the configuration.
        folder: run folder.
        version: id of the run.
        tracked: the tracker, only on rank 0; the Trainer calls `finalize` after fit and again after test, so
            `train_anywhere.training.lightning.run` calls `close` instead.
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
        """W&B's Run, MLflow's client, or the object that the configuration names; a dummy on other ranks, as Lightning's."""
        made = self.tracked.logger if self.tracked else DummyExperiment()
        return getattr(made, "experiment", made) if self.tracked else made

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run, for calls of its client."""
        return getattr(self.tracked and self.tracked.logger, "id", None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one point of each metric, without the epoch number that Lightning adds."""
        if self.tracked:
            self.tracked.log_metrics({k: v for k, v in metrics.items() if k != "epoch"}, step or 0)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a tracker gets the configuration when it is created, and the run folder has its config.yaml."""

    def after_save_checkpoint(self, *args: Any) -> None:
        """Do nothing."""

    def finalize(self, status: str) -> None:
        """Do nothing."""

    def close(self, state: str) -> None:
        """Close the tracker at the end of an attempt; `state` is completed, preempted or failed."""
        if self.tracked:
            self.tracked.finalize(state)


class RunWandb(RunLogger, WandbLogger):
    """The same as a WandbLogger, with its `log_image`, `watch` and others, for `loggers=wandb`."""


def receive_calls(logger: Logger, receive: Callable[[Mapping[str, Any]], None]) -> Logger:
    """Return the logger, changed so that `receive` also gets the values of each call of `log_metrics`."""
    log_metrics = logger.log_metrics

    def received(*args: Any, **named: Any) -> Any:
        receive(named["metrics"] if "metrics" in named else args[0])
        return log_metrics(*args, **named)

    logger.log_metrics = received  # type: ignore[method-assign]
    return logger
