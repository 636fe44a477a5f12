"""Classification in torch."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.tasks import classification


class Classification(classification.Classification):
    """Batches are (images, labels): images [b, H, W, C], labels are class numbers [b]."""

    def prepare(self, batch: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return contiguous images with channels first, as torch needs them; runs where batches are loaded."""
        images, labels = batch
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels

    def step(
        self, network: nn.Module, batch: tuple[Tensor, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each row [b], and the sums of the batch, float32 [3].

        The network maps images float32 [b, C, H, W] to logits [b, classes]. Rows with a `weight` (float32 [b]) of 0 are padding.
        """
        images, labels = batch
        logits = network(images)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        real = weight > 0
        right = (logits.argmax(1) == labels) & real
        return losses, torch.stack([(losses.detach() * real).sum(), right.sum(), real.sum()])
