"""Classification: cross-entropy as the loss, and the accuracy as a fraction."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


class Classification(pl.LightningModule):
    """A network that is trained on images with one label each.

    Batches are (images, labels): images float32 [b, H, W, C], labels are class numbers, int64 [b].

    Args:
        network: maps images float32 [b, C, H, W] to logits [b, classes].
        make_optimizer: maps the network to what `configure_optimizers` may return, such as an optimizer of its parameters.
    """

    def __init__(self, network: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.network, self.make_optimizer = network, make_optimizer

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, H, W, C] to logits [b, classes]."""
        return self.network(images.permute(0, 3, 1, 2).contiguous())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean loss of a batch."""
        return self._measure("train", batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the metrics of a batch."""
        self._measure("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the metrics of a batch."""
        self._measure("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the logits [b, classes]."""
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and its schedule if it has one."""
        return self.make_optimizer(self.network)

    def _measure(self, part: str, batch: Batch) -> Tensor:
        images, labels = batch
        logits = self(images)
        loss = functional.cross_entropy(logits, labels)
        accuracy = (logits.argmax(1) == labels).float().mean()
        self.log_dict({f"{part}/loss": loss, f"{part}/acc": accuracy}, batch_size=len(labels))
        return loss
