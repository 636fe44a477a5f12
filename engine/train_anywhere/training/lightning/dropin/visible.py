"""What user code sees of the run's checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class RunCheckpoints(ModelCheckpoint):
    """Lightning's ModelCheckpoint as user code reads it, about this project's checkpoints.

    Args:
        monitor: the metric that decides which checkpoint is the best.
        mode: whether the smallest or the largest value is the best.
    """

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
