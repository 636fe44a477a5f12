"""User modules whose data defines how a file becomes a row."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from engine.tests.inference.torch_strangers import Plain


class Rows(pl.LightningDataModule):
    """Rows of four numbers, one in each file. A hook doubles them on the way to the device."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.ones(20, 4), torch.ones(20, 1)), 10)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [2 * batch[0], *batch[1:]]

    def row_of(self, item: Any) -> tuple[np.ndarray, int]:
        return np.loadtxt(Path(item), dtype=np.float32), 0


class FromFiles(Plain):
    """Answers with two numbers for each row."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self(batch[0]) - batch[1]).square().mean()

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        answer = batch[0].sum(1, keepdim=True)
        return torch.cat([answer, -answer], 1)

    validation_step = test_step = None  # type: ignore[assignment]


def keras_rows() -> Any:
    from engine.tests.training.keras.strangers import Rows as KerasRows

    class WithFiles(KerasRows):
        def row_of(self, item: Any) -> tuple[np.ndarray, np.ndarray]:
            return np.loadtxt(Path(item), dtype=np.float32), self.y[0]

    return {"train": WithFiles(160)}
