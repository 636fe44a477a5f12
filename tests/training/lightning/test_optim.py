"""Optimizers."""

from collections.abc import Callable

import pytest
import torch

from src.config.schema import Config
from src.training.lightning.optim import apply_settings, make_optimizer

MakeConfig = Callable[..., Config]


def two_steps(config: Config) -> torch.Tensor:
    """A weight that was 1, after two steps with a gradient of 1."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = make_optimizer(config.optimizer, [weight])
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("nesterov", ["true", "false"])
def test_sgd_by_hand(nesterov: str, make_config: MakeConfig) -> None:
    """Classical weight decay: a part of the gradient, so it goes through the momentum."""
    config = make_config("optimizer=sgd", "optimizer.weight_decay=0.5", f"optimizer.nesterov={nesterov}")
    lr, momentum = 0.1, 0.9
    weight, velocity = 1.0, 0.0
    for _ in range(2):
        gradient = 1.0 + 0.5 * weight
        velocity = momentum * velocity + gradient
        weight -= lr * (gradient + momentum * velocity if nesterov == "true" else velocity)
    torch.testing.assert_close(two_steps(config), torch.tensor([weight], dtype=torch.float64))


def test_adamw_by_hand(make_config: MakeConfig) -> None:
    """Decoupled weight decay; with a constant gradient, the corrected moments are 1 and the step is lr."""
    config = make_config(
        "optimizer=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=0.5", "optimizer.eps=1e-20"
    )
    weight = 1.0
    for _ in range(2):
        weight = weight * (1 - 0.1 * 0.5) - 0.1
    torch.testing.assert_close(two_steps(config), torch.tensor([weight], dtype=torch.float64))


def test_restored_settings_give_way_to_the_configuration(make_config: MakeConfig) -> None:
    optimizer = make_optimizer(make_config("optimizer=adamw").optimizer, [torch.nn.Parameter(torch.ones(1))])
    optimizer.param_groups[0]["lr"] = 0.125
    apply_settings(make_config("optimizer=adamw", "optimizer.betas=[0.5,0.6]").optimizer, optimizer)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert len(optimizer.param_groups[0]["params"]) == 1
