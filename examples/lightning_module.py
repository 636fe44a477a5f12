r"""A LightningModule and a LightningDataModule, as they are written for Lightning's own Trainer.

    python src/train.py task._target_=examples.lightning_module.LitDigits \
        data._target_=examples.lightning_module.DigitsData

Arguments of both classes are keys: `task.hidden=128 data.batch_size=64`. `optimizer` and `schedule` are used because LitDigits has
no `configure_optimizers`; with one, its own optimizer is used.
"""

from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

DIGITS = Path(__file__).parents[1] / "src/data/digits.npz"
"""1,797 handwritten digits: images uint8 [1797, 8, 8] of 0 to 16, and labels."""


class LitDigits(pl.LightningModule):
    """A network of two layers for images of 8x8 pixels."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [b, 10] of images [b, 8, 8]."""
        return self.net(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log loss and accuracy; the mean over the epoch is what counts."""
        images, labels = batch
        logits = self(images)
        self.log("val_loss", functional.cross_entropy(logits, labels))
        self.log("val_acc", (logits.argmax(1) == labels).float().mean())


class DigitsData(pl.LightningDataModule):
    """The bundled digits."""

    def __init__(self, batch_size: int = 96) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Split the rows; the generator makes the same split in every run."""
        arrays = np.load(DIGITS)
        images = torch.from_numpy(arrays["images"] / 16).float()
        rows = TensorDataset(images, torch.from_numpy(arrays["labels"]).long())
        self.train, self.val = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(0))

    def train_dataloader(self) -> DataLoader:
        """Return the batches to train on."""
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Return the batches to validate on."""
        return DataLoader(self.val, self.batch_size)
