"""The time that Lightning's own loop waits for its loader."""

import time

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

from src.training.lightning.data_wait import DataWait


class Slow(RandomDataset):
    """Rows that take 20 ms each to read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return super().__getitem__(index)


@pytest.mark.parametrize("slow", [True, False])
def test_waiting_for_data_is_told_from_training(slow: bool) -> None:
    """Eight batches of one row; the training itself is slow in the other case."""

    class Module(BoringModel):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            time.sleep(0 if slow else 0.02)
            return super().training_step(batch, batch_idx)["loss"]

    wait = DataWait()
    trainer = pl.Trainer(
        max_steps=8,
        limit_val_batches=0,
        accelerator="cpu",
        profiler=wait,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader((Slow if slow else RandomDataset)(32, 8)))
    assert 0.16 <= wait.seconds() < 0.3 if slow else wait.seconds() < 0.08
