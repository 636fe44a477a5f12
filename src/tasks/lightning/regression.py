"""Regression with torch."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from src.tasks import regression as neutral


class Regression(neutral.Regression):
    """Batches are {"columns": [b, columns], "targets": [b, outputs]}."""

    def step(
        self, network: nn.Module, batch: Mapping[str, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean squared error of each row [b], and the sums by `self.sums`, float32 [5]; rows of weight 0 are padding.

        Args:
            network: columns float32 [b, columns] to predictions [b, outputs].
            weight: of each row, float32 [b].
        """
        targets = batch["targets"]
        errors = network(batch["columns"]) - targets
        losses, real = errors.square().mean(1), (weight > 0).float()
        counted = (losses.detach(), errors.detach().abs().mean(1), targets.mean(1), targets.square().mean(1))
        return losses, torch.stack([*((row.float() * real).sum() for row in counted), real.sum()])
