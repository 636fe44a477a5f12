"""The LightningModule: a network, its loss, and running totals for the metrics."""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.config.schema import Config
from src.data.torch_loader import Batch
from src.training.lightning.optim import apply_settings, learning_rate, make_optimizer
from src.training.plan import Plan


class Totals:
    """Sums of loss, right answers and samples, kept on the device: adding to them makes nobody wait."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add(self, logits: Tensor, label: Tensor, weight: Tensor, losses: Tensor) -> None:
        """Count the rows of a batch whose weight is above 0; the others are padding."""
        real = weight > 0
        right = (logits.argmax(1) == label) & real
        sums = torch.stack([(losses.detach() * real).sum(), right.sum(), real.sum()])
        self.sums = sums if self.sums is None else self.sums + sums

    def take(self, device: torch.device) -> Tensor:
        """The sums float32 [3] since the last call."""
        taken, self.sums = self.sums, None
        return torch.zeros(3, device=device) if taken is None else taken


class Classifier(pl.LightningModule):
    """Classifies images; the one place to change what is trained and how a loss is made of a batch.

    Args:
        network: images float32 [b, C, H, W] to logits [b, classes].
        devices: that share a batch, for the scaling of the learning rate.
    """

    def __init__(self, network: nn.Module, config: Config, plan: Plan, devices: int) -> None:
        super().__init__()
        self.network = network
        self.config, self.plan, self.devices = config, plan, devices
        self.train_totals, self.eval_totals = Totals(), Totals()

    def forward(self, image: Tensor) -> Tensor:
        """Logits [b, classes]."""
        logits: Tensor = self.network(image)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean of weight * cross-entropy; averaged over ranks, that is the mean over the real samples."""
        losses = self._losses(batch, self.train_totals)
        return (losses * batch[2]).mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Counts the batch; the totals are reduced once, when all batches are done."""
        self._losses(batch, self.eval_totals)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """As for validation."""
        self._losses(batch, self.eval_totals)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the configuration."""
        return make_optimizer(self.config.optimizer, self.parameters())

    def on_train_start(self) -> None:
        """A run may go on with other settings than it was saved with."""
        apply_settings(self.config.optimizer, self.optimizers())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate: a function of the step alone, so there is no scheduler to restore."""
        lr = learning_rate(self.config, self.plan, self.global_step, self.devices)
        for group in optimizer.param_groups:
            group["lr"] = lr

    def _losses(self, batch: Batch, totals: Totals) -> Tensor:
        image, label, weight = batch
        logits = self(image)
        losses = functional.cross_entropy(logits, label, reduction="none")
        totals.add(logits, label, weight, losses)
        return losses
