"""Regression in torch."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from src.tasks import regression


class Regression(regression.Regression):
    """Batches are {"columns": [b, columns], "targets": [b, outputs]}."""

    def step(
        self, network: nn.Module, batch: Mapping[str, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the squared error of each row [b], and the sums of the batch, float32 [5].

        With several outputs, the errors of a row are means over them.
        The network maps columns float32 [b, columns] to predictions [b, outputs]. Rows with a `weight` (float32 [b]) of 0 are padding.
        """
        targets = batch["targets"]
        errors = network(batch["columns"]) - targets
        losses, real = errors.square().mean(1), (weight > 0).float()
        counted = (losses.detach(), errors.detach().abs().mean(1), targets.mean(1), targets.square().mean(1))
        return losses, torch.stack([*((row.float() * real).sum() for row in counted), real.sum()])
