"""Loss and sums of a batch."""

import pytest
import torch
from torch import nn

from src.tasks.lightning.regression import Regression


def test_the_numbers_of_a_batch_without_its_padding() -> None:
    task = Regression()
    rows = {
        "columns": torch.tensor([[1.0, 2.0], [3.0, 5.0], [9.0, 9.0]]),
        "targets": torch.tensor([[1.0, 4.0], [2.0, 3.0], [0.0, 0.0]]),
    }
    losses, sums = task.step(nn.Identity(), rows, torch.tensor([1.5, 1.5, 0.0]), False)
    assert losses.tolist() == [2.0, 2.5, 81.0]
    assert sums.tolist() == [4.5, 2.5, 5.0, 15.0, 2.0]
    measured = task.measure(sums.tolist())
    assert measured["loss"] == 2.25 and measured["mae"] == 1.25
    assert measured["r2"] == pytest.approx(1 - 4.5 / (15 - 25 / 2))
