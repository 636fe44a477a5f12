"""Image classification with torch."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.tasks import classification as neutral


class Classification(neutral.Classification):
    """Batches are (images, labels): images [b, H, W, C], labels are class numbers [b]."""

    def prepare(self, batch: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Images channels first, as torch wants them, and contiguous; called where batches are loaded."""
        images, labels = batch
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels

    def step(
        self, network: nn.Module, batch: tuple[Tensor, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each row [b], and the sums by `self.sums`, float32 [3]; rows of weight 0 are padding.

        Args:
            network: images float32 [b, C, H, W] to logits [b, classes].
            weight: of each row, float32 [b].
        """
        images, labels = batch
        logits = network(images)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        real = weight > 0
        right = (logits.argmax(1) == labels) & real
        return losses, torch.stack([(losses.detach() * real).sum(), right.sum(), real.sum()])
