"""What user code sees of the run: its loggers and checkpoints, and a listener to what the loggers get."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment
from torch import Tensor

from train_anywhere.training.tracking import GuardedLogger


class RunCheckpoints(ModelCheckpoint):
    """Lightning's ModelCheckpoint as user code reads it, about this project's checkpoints."""

    def __init__(
        self, folder: Path, monitor: str | None, mode: str, finish: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(dirpath=folder, monitor=monitor, mode=mode, every_n_epochs=1)
        self.finish, self._complete = finish, False

    @property
    def best_model_path(self) -> str:
        """The file of the best or newest checkpoint. It exists when the training is complete."""
        if self._complete:
            self.finish()
        return self._best

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        self._best = path

    def end_epoch(self, complete: bool) -> None:
        """Note whether the last checkpoint of the training is submitted."""
        self._complete = complete

    def follow(self, path: Path, value: float | None) -> None:
        """Take a checkpoint into account, with the value of the monitored metric."""
        self.last_model_path = self._last_checkpoint_saved = str(path)
        if self.monitor is None:
            self.best_model_path = str(path)
        elif value is not None:
            self.current_score = torch.tensor(value)
            best: Any = self.best_model_score  # type: ignore[has-type]
            sign = 1 if self.mode == "max" else -1
            if best is None or sign * value >= sign * float(best):
                self.best_model_score = self.kth_value = self.current_score
                self.best_model_path = self.kth_best_model_path = str(path)
                self.best_k_models = {str(path): self.current_score}


_OWN = ("setup", "state_dict", "load_state_dict")
for _hook in (*_OWN, *(name for name in dir(pl.Callback) if name.startswith("on_"))):
    if _hook not in vars(RunCheckpoints):
        setattr(RunCheckpoints, _hook, getattr(pl.Callback, _hook))  # it saves nothing itself


class RunLogger(Logger):
    """A logger of the run, with a tracker on rank 0 or without one. Values of user code go to metrics.csv.

    The Trainer calls `finalize` after fit and again after test, so `train_anywhere.training.lightning.run` calls `close` instead.
    """

    def __init__(self, name: str, folder: Path, version: str, tracked: GuardedLogger | None = None) -> None:
        super().__init__()
        self._run, self.tracked = (name, str(folder), version), tracked

    name = property(lambda self: self._run[0])
    save_dir = log_dir = property(lambda self: self._run[1])
    version = property(lambda self: self._run[2])

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

    def log(log_metrics: Callable[..., Any], first: bool, *arguments: Any, **named: Any) -> Any:
        frame: Any = inspect.currentframe()
        looping = str(frame.f_back.f_globals.get("__name__")).startswith("lightning.pytorch.trainer.")
        values = _numbers(named["metrics"] if "metrics" in named else arguments[0])
        if looping and values.get("epoch") == trainer.current_epoch:
            del values["epoch"]  # Lightning adds it
        if not trainer.sanity_checking and (first or not looping):
            receive(looping, trainer, values)
        return log_metrics(*arguments, **named)

    trainer.loggers = [*loggers]
    for number, logger in enumerate(trainer.loggers):
        logger.log_metrics = partial(log, logger.log_metrics, number == 0)  # type: ignore[method-assign]


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    }
