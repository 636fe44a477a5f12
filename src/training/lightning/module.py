"""The training and the test step, as the LightningModule that the Trainer uses."""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from src.config.schema import Config
from src.data.torch_loader import Batch
from src.tasks import SUMS
from src.tasks.lightning import classification as task
from src.training.lightning.optim import apply_settings, make_optimizer
from src.training.plan import Plan
from src.training.schedules import learning_rate


class RunningSums:
    """Sums over batches by `src.tasks.SUMS`, kept on the device: adding does not wait for it, reading them does."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        """Add the sums of a batch, float32 [len(SUMS)]."""
        self.sums = sums if self.sums is None else self.sums + sums

    def take(self, device: torch.device) -> Tensor:
        """The sums of this rank since the last call, float32 [len(SUMS)]."""
        taken, self.sums = self.sums, None
        return torch.zeros(len(SUMS), device=device) if taken is None else taken


class Classifier(pl.LightningModule):
    """Trains and tests a network: weighted loss, exact metrics; the task says what the loss is.

    The loss is the mean over rows of weight * cross-entropy; averaged over ranks, that of all real samples.

    Args:
        network: images float32 [b, C, H, W] to logits [b, classes].
        devices: that share the global batch, for the scaling of the learning rate.
    """

    def __init__(self, network: nn.Module, config: Config, plan: Plan, devices: int) -> None:
        super().__init__()
        self.network = network
        self.config, self.plan, self.devices = config, plan, devices
        self.train_sums, self.eval_sums = RunningSums(), RunningSums()

    def forward(self, image: Tensor) -> Tensor:
        """Logits [b, classes]."""
        logits: Tensor = self.network(image)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of this rank's batch."""
        losses = self._losses(batch, self.train_sums)
        return (losses * batch[2]).mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count one batch; the sums are reduced once, after all batches."""
        self._losses(batch, self.eval_sums)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count one batch."""
        self._losses(batch, self.eval_sums)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the configuration."""
        return make_optimizer(self.config.optimizer, self.parameters())

    def on_train_start(self) -> None:
        """A run may resume with other settings than it was saved with."""
        apply_settings(self.config.optimizer, self.optimizers())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate: a function of the step alone, so there is no scheduler to restore."""
        lr = learning_rate(self.config, self.plan, self.global_step, self.devices)
        for group in optimizer.param_groups:
            group["lr"] = lr

    def _losses(self, batch: Batch, sums: RunningSums) -> Tensor:
        image, label, weight = batch
        logits = self(image)
        losses = task.cross_entropy(logits, label)
        sums.add(task.sums(losses, logits, label, weight))
        return losses
