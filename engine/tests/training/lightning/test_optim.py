"""Optimizers."""

import pytest
import torch

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.lightning.optim import (
    BASE_LR,
    ConfiguredOptimizer,
    apply_settings,
    configure_optimizer,
    make_optimizer,
)
from train_anywhere.training.plan import Plan

from .conftest import MakeConfig


def two_steps(config: Config) -> torch.Tensor:
    """A weight that was 1, after two steps with a gradient of 1."""
    network = torch.nn.Module()
    network.weight = weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = make_optimizer(config.optimizer, "32", network)
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
    """Decoupled weight decay. With a constant gradient the moments are 1 and the step is lr."""
    config = make_config(
        "optimizer=adamw", "optimizer.lr=0.1", "optimizer.weight_decay=0.5", "optimizer.eps=1e-20"
    )
    weight = 1.0
    for _ in range(2):
        weight = weight * (1 - 0.1 * 0.5) - 0.1
    torch.testing.assert_close(two_steps(config), torch.tensor([weight], dtype=torch.float64))


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1))


def test_restored_settings_give_way_to_the_configuration(make_config: MakeConfig) -> None:
    optimizer = make_optimizer(make_config("optimizer=adamw").optimizer, "32", network())
    optimizer.param_groups[0]["lr"] = 0.125
    changed = make_config("optimizer=adamw", "optimizer.betas=[0.5,0.6]").optimizer
    apply_settings(changed, "32", network(), optimizer)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert len(optimizer.param_groups[0]["params"]) == 6


def test_groups_keep_their_own_decay(make_config: MakeConfig) -> None:
    """Names of the parameter and its layer's class count in any case, also after a resume."""
    config = make_config("optimizer=adamw", "optimizer.weight_decay=0.25", "optimizer.no_decay=[Bias,norm]")
    optimizer = make_optimizer(config.optimizer, "32", network())
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 4]
    for _ in range(2):
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.25, 0.0]
        apply_settings(config.optimizer, "32", network(), optimizer)


OTHER = ("optimizer=custom", "optimizer._target_=torch.optim.NAdam", "optimizer.lr=0.5")


def test_any_optimizer_of_torch(make_config: MakeConfig) -> None:
    config = make_config(*OTHER, "+optimizer.weight_decay=0.1", "optimizer.no_decay=[bias]")
    optimizer = make_optimizer(config.optimizer, "32", network())
    assert isinstance(optimizer, torch.optim.NAdam)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.1), (0.5, 0.0)]


def test_what_an_optimizer_refuses_is_a_sentence(make_config: MakeConfig) -> None:
    config = make_config(*OTHER, "+optimizer.momentum_decay=-1")
    with pytest.raises(
        ConfigError, match=r"optimizer._target_=torch.optim.NAdam can't be made: Invalid momentum_decay"
    ):
        make_optimizer(config.optimizer, "32", network())


GROUPS = (
    "optimizer=adamw",
    "optimizer.lr=0.5",
    "optimizer.weight_decay=0.25",
    'optimizer.groups=[{match: "0[.].*", lr: 0.125}, {match: ".*bias", weight_decay: 0}]',
)


def test_groups_by_pattern(make_config: MakeConfig) -> None:
    """A parameter gets the values of each pattern that matches its whole name, even if frozen."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = make_optimizer(make_config(*GROUPS).optimizer, "32", model)
    names = {id(p): name for name, p in model.named_parameters()}
    found = [
        ([names[id(p)] for p in g["params"]], g["lr"], g["weight_decay"]) for g in optimizer.param_groups
    ]
    assert found == [
        (["1.weight", "2.weight"], 0.5, 0.25),
        (["0.weight"], 0.125, 0.25),
        (["0.bias"], 0.125, 0.0),
        (["1.bias", "2.bias"], 0.5, 0.0),
    ]


def test_the_schedule_multiplies_the_rate_of_each_group(make_config: MakeConfig) -> None:
    config = make_config(*GROUPS, "schedule=cosine", "schedule.warmup_epochs=1", "optimizer.scale_lr=linear")
    plan = Plan(8, 4, 1, 4, 2, 8, 4, 0, 0)
    optimizer = configure_optimizer(config, plan, network(), 2)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.25, 0.25, 1.0]
    callback = ConfiguredOptimizer(None, config, course := Course(plan), 2)  # type: ignore[arg-type]
    callback.trained, course.steps_done = network(), 1
    callback.on_before_optimizer_step(None, None, optimizer)  # type: ignore[arg-type]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.125, 0.125, 0.5]


def test_values_of_groups_may_change_at_a_resume_and_patterns_may_not(make_config: MakeConfig) -> None:
    model = network()
    optimizer = make_optimizer(make_config(*GROUPS).optimizer, "32", model)
    other = make_config(
        *GROUPS, 'optimizer.groups=[{match: "0[.].*", lr: 0.5}, {match: ".*bias", weight_decay: 1}]'
    )
    apply_settings(other.optimizer, "32", model, optimizer)
    assert [(g[BASE_LR], g["weight_decay"]) for g in optimizer.param_groups] == [
        (0.5, 0.25), (0.5, 0.25), (0.5, 1.0), (0.5, 1.0)
    ]  # fmt: skip
    for words in (["optimizer.groups=[]"], ['optimizer.groups=[{match: "2[.].*", lr: 0.5}]']):
        with pytest.raises(ConfigError, match="resume with the same patterns"):
            apply_settings(make_config(*GROUPS, *words).optimizer, "32", model, optimizer)


def test_groups_that_can_not_work_are_refused(make_config: MakeConfig) -> None:
    unmatched = make_config(
        "optimizer=adamw", 'optimizer.groups=[{match: "2", lr: 1}, {match: "x.*", lr: 1}]'
    )
    with pytest.raises(
        ConfigError, match=r"match=2 matches no parameter(.|\n)*match=x.* matches no parameter"
    ):
        make_optimizer(unmatched.optimizer, "32", network())
    plain = make_config(
        "optimizer=custom",
        "optimizer._target_=torch.optim.Rprop",
        'optimizer.groups=[{match: ".*", weight_decay: 1}]',
    )
    with pytest.raises(ConfigError, match="has no weight_decay"):
        make_optimizer(plain.optimizer, "32", network())
    with pytest.raises(ConfigError, match=r"groups\[0\].match=\( is not a regular expression"):
        make_config("optimizer=adamw", 'optimizer.groups=[{match: "(", lr: 1}]')
