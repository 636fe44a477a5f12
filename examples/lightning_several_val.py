r"""Two validation sets: the digits as they are, and the same with noise.

    python src/train.py task._target_=examples.lightning_several_val.LitDigits \
        data._target_=examples.lightning_several_val.open_data checkpoint.monitor=val_acc/noisy

`validation_step` gets the number of the set as `dataloader_idx`. The best checkpoint is the one with the best `checkpoint.monitor`.
"""

from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

DIGITS = Path(__file__).parents[1] / "src/data/digits.npz"
"""1,797 handwritten digits: images uint8 [1797, 8, 8] of 0 to 16, and labels."""

VAL = ("clean", "noisy")
"""Names of the validation sets, in the order of `open_data`."""


class LitDigits(pl.LightningModule):
    """A network of two layers for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the accuracy under a name of its own for each set, instead of Lightning's val_acc/dataloader_idx_0."""
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float()
        self.log(f"val_acc/{VAL[dataloader_idx]}", right.mean(), add_dataloader_idx=False)


def open_data() -> dict[str, TensorDataset | list[TensorDataset]]:
    """Return rows to train on and two sets to validate on; `data.batch_size` rows are a batch."""
    arrays = np.load(DIGITS)
    images = torch.from_numpy(arrays["images"] / 16).float()
    labels = torch.from_numpy(arrays["labels"]).long()
    noise = 0.3 * torch.randn(images[1400:].shape, generator=torch.Generator().manual_seed(0))
    clean, noisy = (TensorDataset(images[1400:] + n, labels[1400:]) for n in (0, noise))
    return {"train": TensorDataset(images[:1400], labels[:1400]), "val": [clean, noisy]}
