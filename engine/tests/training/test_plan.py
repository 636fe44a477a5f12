"""Batches, steps, epochs and learning rates of a run, and the message of a resumed one."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.choices import ConstantSchedule, CosineSchedule, StepSchedule
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.plan import (
    learning_rate,
    limit_batches,
    lr_factor,
    make_plan,
    resume_message,
    scale_lr,
    validation_due,
)

Make = Callable[..., Config]


PLANS: list[tuple[str, tuple[int, ...], dict[str, int]]] = [
    ("data.batch_size=10 trainer.max_epochs=3", (10, 3, 2, 2), {
        "batch_per_rank": 5, "train_batches": 10, "val_batches": 3, "test_batches": 2, "steps_per_epoch": 10, "max_epochs": 3,
        "total_steps": 30,
    }),
    # an incomplete window of accumulated batches is left out
    ("data.batch_size=10 trainer.accumulate_grad_batches=4", (10, 2, 2, 1), {"train_batches": 8, "steps_per_epoch": 2}),
    ("data.batch_size=10 trainer.max_steps=13", (10, 2, 2, 1), {"total_steps": 13, "max_epochs": 2}),
    ("trainer.fast_dev_run=true trainer.accumulate_grad_batches=8", (10, 2, 0, 1), {
        "total_steps": 1, "train_batches": 1, "val_batches": 1, "test_batches": 0,
    }),
    ("data.batch_size=10 trainer.overfit_batches=3", (10, 8, 2, 1), {"train_batches": 3, "val_batches": 3, "test_batches": 2}),
    ("data.batch_size=10 trainer.overfit_batches=3 trainer.limit_val_batches=0", (10, 8, 2, 1), {"val_batches": 0}),
]  # fmt: skip
"""Keys; batches of training, validation and test, and ranks; facts of the plan."""


@pytest.mark.parametrize(("words", "sizes", "expected"), PLANS)
def test_plans(make_config: Make, words: str, sizes: tuple[int, ...], expected: dict[str, int]) -> None:
    plan = make_plan(make_config(*words.split()), *sizes)
    assert {name: getattr(plan, name) for name in expected} == expected


def test_limits() -> None:
    limits: list[float] = [1.0, 0.25, 0.01, 0.0, 3, 30, 0, 1]
    assert [limit_batches(10, limit, fast_dev_run=False) for limit in limits] == [10, 2, 1, 0, 3, 10, 0, 1]


def test_refusals_come_together(make_config: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(
            make_config("data.batch_size=50", "trainer.accumulate_grad_batches=9"), 2, 1, 1, world_size=3
        )
    assert len(caught.value.problems) == 2
    assert "use data.batch_size=51" in caught.value.problems[0]


def test_validation_is_due_every_few_epochs(make_config: Make) -> None:
    config = make_config("data.batch_size=100", "trainer.max_epochs=5", "trainer.check_val_every_n_epoch=2")
    plan = make_plan(config, 10, 1, 1, 1)
    due = [validation_due(config.trainer, plan, epoch, 10, 10 * (epoch + 1)) for epoch in range(5)]
    assert due == [False, True, False, True, False]
    assert validation_due(config.trainer, plan, 4, 7, 50)  # trainer.max_steps ends the run within an epoch
    none = make_plan(make_config("data.batch_size=100", "trainer.limit_val_batches=0"), 10, 1, 1, 1)
    assert not validation_due(config.trainer, none, 4, 10, 50)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trainer.val_check_interval=0.25"], [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25]),
        (
            ["trainer.val_check_interval=0.35"],
            [3, 6, 9, 13, 16, 19, 23, 25],
        ),  # not at the end of an epoch, as in Lightning
        (["trainer.val_check_interval=10"], [10, 20, 25]),
        (["trainer.val_check_interval=4", "trainer.check_val_every_n_epoch=2"], [14, 18, 25]),
        (
            ["trainer.val_check_interval=4", "trainer.check_val_every_n_epoch=null"],
            [4, 8, 12, 16, 20, 24, 25],
        ),
        (["trainer.val_check_interval=12", "trainer.check_val_every_n_epoch=null"], [12, 24, 25]),
        (["trainer.val_check_interval=12", "trainer.fast_dev_run=true"], [1]),
    ],
)
def test_validations_within_an_epoch(make_config: Make, words: list[str], expected: list[int]) -> None:
    config = make_config(
        "data.batch_size=100", "trainer.max_steps=25", "trainer.accumulate_grad_batches=2", *words
    )
    plan = make_plan(config, 20, 1, 1, 1)
    at = [(step, *divmod(step, plan.steps_per_epoch)) for step in range(1, plan.total_steps + 1)]
    at = [
        (step, epoch, inner) if inner else (step, epoch - 1, plan.steps_per_epoch)
        for step, epoch, inner in at
    ]
    t, k = config.trainer, plan.accumulate
    due = [step for step, epoch, inner in at if validation_due(t, plan, epoch, k * inner, step)]
    assert due == expected


def test_an_interval_longer_than_an_epoch_is_refused(make_config: Make) -> None:
    words = ("data.batch_size=100", "trainer.val_check_interval=11")
    with pytest.raises(
        ConfigError, match=r"val_check_interval=11 is more than the 10 optimizer steps of an epoch"
    ):
        make_plan(make_config(*words), 10, 1, 1, 1)
    assert make_plan(make_config(*words, "trainer.limit_val_batches=0"), 10, 1, 1, 1).val_batches == 0


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


def test_a_longer_schedule_that_raises_the_learning_rate_again_is_told(make_config) -> None:
    def line(*words: str, lr: float) -> str:
        config = make_config("trainer.max_epochs=9", "optimizer.lr=0.001", *words)
        plan = make_plan(config, 4, 1, 1, 1)
        metrics = {"lr": lr} if lr else {}
        saved = SavedCheckpoint(
            path=Path("x"), step=24, epoch=6, batch=0, metrics=metrics, value=None, framework="one"
        )
        return resume_message(saved, config, plan, 1)

    cosine = ("schedule.warmup_epochs=0", "schedule.final=0")  # half a cosine at step 23 of 36 is 0.289
    plain = "resuming at step 24 of 36"
    assert (
        line(*cosine, lr=1.2e-05)
        == f"{plain}; schedule=cosine now ends there: the learning rate rises from 1.2e-05 to 0.000289"
    )
    assert line(*cosine, lr=0.000289) == line(*cosine, lr=0) == line("schedule=constant", lr=0.001) == plain
    assert line("schedule.warmup_epochs=7", lr=1e-05) == plain  # it rises anyway
