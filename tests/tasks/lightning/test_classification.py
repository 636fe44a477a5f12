"""Classification: what the network gets, and the loss."""

from typing import Any

import torch
from torch import nn

from src.tasks.lightning.classification import Classification


def make_task(network: nn.Module) -> Any:
    """Return the task without a Trainer, with its metrics in `logged`."""
    task: Any = Classification(network, lambda network: None)
    task.logged = {}
    task.log_dict = lambda metrics, **named: task.logged.update(metrics)
    return task


def test_images_become_channels_first() -> None:
    images = torch.arange(24.0).reshape(1, 2, 4, 3)
    turned = make_task(nn.Identity())(images)
    assert turned.is_contiguous() and turned.shape == (1, 3, 2, 4)
    assert torch.equal(turned[0, 1], images[0, :, :, 1])


def test_loss_and_accuracy_are_means_over_rows() -> None:
    images = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]).reshape(3, 1, 1, 2)
    task = make_task(nn.Flatten())
    loss = task.training_step((images, torch.tensor([0, 1, 0])), 0)
    torch.testing.assert_close(loss, torch.log(1 + torch.exp(torch.tensor([-2.0, -2.0, 2.0]))).mean())
    assert task.logged["train/loss"] == loss
    torch.testing.assert_close(task.logged["train/acc"], torch.tensor(2 / 3))
