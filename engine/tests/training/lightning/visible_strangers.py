"""A module and a callback that record everything user code reads of the Trainer."""

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from engine.tests.differential.lightning.parts import PLAIN, attributes

SEEN: dict[str, dict[str, Any]] = {}
"""What `Watching` and `Watcher` have seen, by hook."""


class Rows(Dataset[Tensor]):
    """Eight rows."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


class Watcher(pl.callbacks.Callback):
    """A callback of the user."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        SEEN["callback on_fit_start"] = look(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        SEEN["callback on_train_end"] = look(trainer, pl_module)
        SEEN["files"] = {"best": Path(trainer.checkpoint_callback.best_model_path).is_file()}


class Other(pl.callbacks.Callback):
    """Another one."""


class Saver(pl.Callback):
    """Looks at the first checkpoint callback."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        callback: Any = trainer.checkpoint_callback
        SEEN["saver"] = callback.last_model_path or callback.best_model_path


class Limits(pl.callbacks.Callback):
    """Reads the limits of the training."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        starts = ("max_e", "max_s", "min_", "num_", "fast_", "val_", "check_", "limit_tr", "limit_v")
        SEEN["limits"] = {name: getattr(trainer, name) for name in PLAIN if name.startswith(starts)}


class Replaces(pl.callbacks.Callback):
    """Assigns another list of callbacks."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.callbacks = [one for one in trainer.callbacks if not isinstance(one, Other)]
        trainer.callbacks += [Limits()]


class Drops(pl.Callback):
    """Assigns a list of its own."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.callbacks = [self]


class Plain(BoringModel):
    """A module that looks at nothing."""


class Watching(pl.LightningModule):
    """Looks at its Trainer in most hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = functional.mse_loss(self.layer(batch), batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", functional.mse_loss(self.layer(batch), batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", functional.mse_loss(self.layer(batch), batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        return DataLoader(Rows(), batch_size=2)

    val_dataloader = test_dataloader = train_dataloader


def _watch(hook: str) -> Any:
    def watch(self: Any, *arguments: Any) -> None:
        SEEN[hook] = look(self.trainer, self)

    return watch


HOOKS = (
    "on_fit_start on_train_start on_train_epoch_start on_train_epoch_end on_validation_start on_validation_epoch_end "
    "on_validation_end on_train_end on_fit_end on_test_start on_test_epoch_end on_test_end"
)
for _hook in HOOKS.split():
    setattr(Watching, _hook, _watch(_hook))


def look(trainer: Any, module: Any) -> dict[str, Any]:
    """Everything that can be compared."""
    checkpoint, logger = trainer.checkpoint_callback, trainer.logger
    more = {
        "callbacks": [type(c).__name__ for c in trainer.callbacks if type(c).__module__ == __name__],
        "found": len([c for c in trainer.callbacks if isinstance(c, Other)]),
        "checkpoints": [isinstance(c, pl.callbacks.ModelCheckpoint) for c in trainer.checkpoint_callbacks],
        "monitor": (checkpoint.monitor, checkpoint.mode),
        "paths": [bool(p) for p in (checkpoint.best_model_path, checkpoint.dirpath)],
        "score": checkpoint.best_model_score is None or float(checkpoint.best_model_score),
        "top": len(checkpoint.best_k_models),
        "ckpt_path": bool(trainer.ckpt_path),
        "callbacks of the run": None,
        "metrics": (sorted(trainer.callback_metrics), sorted(trainer.logged_metrics), sorted(trainer.progress_bar_metrics)),
        "same logger": module.logger is logger and module.loggers == trainer.loggers and len(trainer.loggers),
        "experiment": [type(one.experiment).__name__ for one in trainer.loggers],
        "module": (trainer.lightning_module is module, trainer.model is module),
        "folders": [os.access(p, os.W_OK) for p in (trainer.log_dir, trainer.default_root_dir, logger.save_dir, logger.log_dir)],
        "names": [isinstance(logger.name, str), logger.version is not None],
        "own optimizers": type(module.optimizers()).__name__ if trainer.training else None,
    }  # fmt: skip
    return attributes(trainer) | more


class TestStarts(pl.Callback):
    """A callback with a hook that could change the weights before a test."""

    __test__ = False

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Change nothing."""
