"""Regression: its loss and metrics."""

from typing import Any

import pytest
import torch
from torch import nn

from src.tasks.lightning.regression import Regression


def test_loss_and_metrics_are_those_of_all_rows() -> None:
    task: Any = Regression(nn.Identity(), lambda network: None)
    task.log = task.log_dict = lambda *arguments, **named: None
    columns, targets = torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[1.0], [2.0], [6.0]])
    losses = []
    for rows in (slice(0, 1), slice(1, 3)):  # batches of different sizes
        losses.append(task.training_step({"columns": columns[rows], "targets": targets[rows]}, 0))
    assert [loss.item() for loss in losses] == [0, 5]
    metrics = task.train_metrics.compute()
    assert metrics["train/mae"].item() == pytest.approx(4 / 3)
    assert metrics["train/r2"].item() == pytest.approx(1 - 10 / 14)
