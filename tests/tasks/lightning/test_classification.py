"""Loss and sums of a batch."""

import torch

from src.tasks.lightning.classification import cross_entropy, sums


def test_padding_counts_nowhere() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [5.0, 0.0]])
    labels, weights = torch.tensor([0, 1, 0, 0]), torch.tensor([4 / 3, 4 / 3, 4 / 3, 0.0])
    losses = cross_entropy(logits, labels)
    expected = torch.log(1 + torch.exp(torch.tensor([-2.0, -2.0, 2.0, -5.0])))
    torch.testing.assert_close(losses, expected)
    total = sums(losses, logits, labels, weights)
    torch.testing.assert_close(total, torch.tensor([expected[:3].sum(), 2.0, 3.0]))
