"""The learning rate over the run."""

import math
from collections.abc import Callable

import pytest

from train_anywhere.config.choices import ConstantSchedule, CosineSchedule, StepSchedule
from train_anywhere.config.schema import Config
from train_anywhere.training.plan import learning_rate, lr_factor, make_plan, scale_lr


def test_warmup_is_linear_and_ends_at_one() -> None:
    schedule = ConstantSchedule("constant", warmup_epochs=0.5)
    assert [lr_factor(schedule, s, 8, 80) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_starts_at_one_halves_in_the_middle_and_ends_at_final() -> None:
    schedule = CosineSchedule("cosine", warmup_epochs=1, final=0.1)
    assert lr_factor(schedule, 10, 10, 110) == 1.0
    assert lr_factor(schedule, 60, 10, 110) == pytest.approx(0.55)
    assert lr_factor(schedule, 110, 10, 110) == pytest.approx(0.1)
    assert lr_factor(schedule, 500, 10, 110) == pytest.approx(0.1)


def test_steps_at_the_milestones() -> None:
    schedule = StepSchedule("step", warmup_epochs=0, milestones=[1, 2.5], gamma=0.1)
    assert [round(lr_factor(schedule, s, 10, 100), 6) for s in (9, 10, 24, 25)] == [1.0, 0.1, 0.1, 0.01]


def test_scaling_rules() -> None:
    assert scale_lr(0.1, "none", 16) == 0.1
    assert scale_lr(0.1, "linear", 16) == pytest.approx(1.6)
    assert scale_lr(0.1, "sqrt", 16) == pytest.approx(0.1 * math.sqrt(16))


def test_the_learning_rate_is_scaled_for_the_ranks(make_config: Callable[..., Config]) -> None:
    config = make_config(
        "optimizer=sgd", "optimizer.scale_lr=linear", "schedule=constant", "data.batch_size=96"
    )
    plan = make_plan(config, 11, 2, 2, 4)
    assert learning_rate(config.optimizer, config.schedule, plan, 5, 4) == pytest.approx(0.4)
