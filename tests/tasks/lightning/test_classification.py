"""Loss and sums of a batch."""

import numpy as np
import torch
from torch import nn

from src.tasks.lightning.classification import Classification


def test_padding_counts_nowhere() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [5.0, 0.0]])
    labels, weights = torch.tensor([0, 1, 0, 0]), torch.tensor([4 / 3, 4 / 3, 4 / 3, 0.0])
    losses, sums = Classification().step(nn.Identity(), (logits, labels), weights, True)
    expected = torch.log(1 + torch.exp(torch.tensor([-2.0, -2.0, 2.0, -5.0])))
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(sums, torch.tensor([expected[:3].sum(), 2.0, 3.0]))


def test_images_become_channels_first() -> None:
    images = np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)
    turned, labels = Classification().prepare((images, np.array([7])))
    assert turned.flags.c_contiguous and turned.shape == (1, 3, 2, 4) and labels.tolist() == [7]
    assert (turned[0, 1] == images[0, :, :, 1]).all()
