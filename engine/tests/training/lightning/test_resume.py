"""A run that was stopped and resumed ends with the same bits as one that was not."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore, Retention
from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.random_states import seed_everything
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.loop.steps import resume_position
from train_anywhere.training.plan import make_user_plan

from .conftest import Fit, MakeRun, assert_equal, assert_resumes, final_state

EVERYTHING = (
    "model=mlp",
    "model.hidden=[32]",
    "model.dropout=0.5",
    "data.batch_size=96",  # 13 batches
    "trainer.max_epochs=3",
    "trainer.accumulate_grad_batches=2",
    "trainer.gradient_clip_val=0.5",
    "trainer.early_stopping.patience=5",
    "trainer.log_every_n_steps=3",
    "monitor.progress=none",
)
"""Dropout, accumulation, clipping, a schedule (cosine), early stopping."""

WITHIN = ("trainer.val_check_interval=3", "checkpoint.keep_last=99")
STOPS: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "in the first window of an epoch": ((), {"train": 15}),
    "in the middle of a window": ((), {"train": 20}),
    "in the last batch before the end of an epoch": ((), {"train": 25}),
    "at the end of an epoch": ((), {"train": 26}),
    "at the end of the first epoch": ((), {"train": 13}),
    "in the first validation batch": ((), {"val": 1}),
    "in the middle of a validation": ((), {"val": 3}),
    "at the end of the run": ((), {"train": 39}),
    "in the last validation": ((), {"val": 6}),
    "in the test": ((), {"test": 2}),
    "before a validation within an epoch": (WITHIN, {"train": 6}),
    "in its first batch": (WITHIN, {"val": 1}),
    "right after it": (WITHIN, {"val": 2}),
    "in the batch after it": (WITHIN, {"train": 7}),
    "right after the second one": (WITHIN, {"val": 4}),
}
QUICK = (
    "in the middle of a window", "at the end of the first epoch", "in the middle of a validation", "in the test", "right after it",
)  # fmt: skip


def checkpoint_facts(run: RunDir) -> list[tuple[int, int, int, float | None]]:
    """Step, position and value of all checkpoints."""
    found = CheckpointStore(run.checkpoints, Retention("max", 1)).all()
    return [(s.step, s.epoch, s.batch, s.value) for s in found]


def validations(run: RunDir) -> list[list[str]]:
    """The validated rows of metrics.csv: step, epoch, val/loss, val/acc."""
    rows = [line.split(",") for line in run.metrics_csv.read_text().splitlines()[1:]]
    return [[row[0], row[1], row[5], row[6]] for row in rows if row[5]]


@pytest.mark.parametrize(
    "place", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in STOPS]
)
@pytest.mark.quick("at the end of the first epoch", "right after it")
def test_stop_and_resume_changes_no_bit(place: str, make_run: MakeRun, fit: Fit) -> None:
    words, stop = STOPS[place]
    whole, parts = assert_resumes(make_run, fit, (*EVERYTHING, *words), **stop)
    assert checkpoint_facts(parts)[-1] == checkpoint_facts(whole)[-1]
    assert validations(parts) == validations(whole)
    if words:
        facts, validated = ([f for f in checkpoint_facts(r) if f[3] is not None] for r in (parts, whole))
        assert facts == validated
        assert [fact[:3] for fact in facts] == [
            (3, 0, 6), (6, 0, 12), (10, 1, 6), (13, 1, 12), (17, 2, 6), (20, 2, 12)
        ]  # fmt: skip


def test_early_stopping_counts_validations_within_an_epoch(make_run: MakeRun, fit: Fit) -> None:
    words = (*EVERYTHING, "trainer.val_check_interval=2", "trainer.early_stopping.patience=2")
    words = (*words, "optimizer.lr=1e-12", "trainer.early_stopping.min_delta=0.1")
    config, whole = make_run(*words)
    outcome = fit(config, whole)
    assert (outcome.state, outcome.step) == ("completed", 6)
    assert [row[0] for row in validations(whole)] == ["2", "4", "6"]
    again = fit(config, whole)  # nothing left to train
    assert (again.state, again.step) == ("completed", 6)
    config, parts = make_run(*words, "trainer.min_epochs=2")
    assert fit(config, parts, val=3).step == 4
    assert fit(config, parts).step == 16  # the first validation after two epochs of 7 steps


def test_a_stop_loses_no_step(make_run: MakeRun, fit: Fit) -> None:
    """The position is that of the optimizer step in which the signal came."""
    config, run = make_run(*EVERYTHING)
    outcome = fit(config, run, train=20)
    assert (outcome.state, outcome.epoch, outcome.step) == ("preempted", 1, 10)
    assert checkpoint_facts(run)[-1] == (10, 1, 6, None)


@pytest.mark.slow
def test_many_stops(make_run: MakeRun, fit: Fit) -> None:
    config, whole = make_run(*EVERYTHING)
    fit(config, whole)
    config, parts = make_run(*EVERYTHING)
    for _ in range(30):
        outcome = fit(config, parts, train=3)  # each part makes two steps
        if outcome.state == "completed":
            break
    assert outcome.state == "completed"
    assert_equal(final_state(parts), final_state(whole))


@pytest.mark.parametrize("workers", ["0", "2", "auto"])
@pytest.mark.quick("auto")
def test_workers_change_nothing(workers: str, make_run: MakeRun, fit: Fit) -> None:
    """Loading in other processes gives the same weights, also from the middle of an epoch."""
    config, whole = make_run(*EVERYTHING)
    fit(config, whole)
    config, parts = make_run(*EVERYTHING, "checkpoint.every_n_steps=4")
    assert fit(config, parts, train=20).state == "preempted"
    config, _ = make_run(*EVERYTHING, f"data.workers={workers}")
    assert fit(config, parts).state == "completed"
    assert_equal(final_state(parts), final_state(whole))


def test_early_stopping_keeps_counting(make_run: MakeRun, fit: Fit) -> None:
    """A learning rate near 0 improves nothing: patience 2 ends the run after 3 validations."""
    overrides = (
        *EVERYTHING,
        "optimizer.lr=1e-12",
        "trainer.max_epochs=9",
        "trainer.early_stopping.patience=2",
    )
    overrides = (*overrides, "trainer.early_stopping.min_delta=0.1")
    config, whole = make_run(*overrides)
    assert fit(config, whole).epoch == 3
    config, parts = make_run(*overrides)
    assert fit(config, parts, train=30).epoch == 2
    assert fit(config, parts).epoch == 3
    again = fit(config, parts)  # nothing left to train
    assert (again.state, again.epoch, again.step) == ("completed", 3, 21)


def test_a_longer_run_resumes_where_the_shorter_one_ended(make_run: MakeRun, fit: Fit) -> None:
    """Also where max_steps had ended it in the middle of an epoch."""
    constant = (*EVERYTHING, "schedule=constant")
    config, whole = make_run(*constant)
    fit(config, whole)
    short, parts = make_run(*constant, "trainer.max_steps=10")
    assert fit(short, parts).step == 10
    assert checkpoint_facts(parts)[-1][:3] == (10, 1, 6)
    assert fit(config, parts).step == 21
    assert_equal(final_state(parts), final_state(whole))


def test_resuming_a_complete_run_trains_nothing(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*EVERYTHING)
    first = fit(config, run)
    state = final_state(run)
    again = fit(config, run)
    assert (again.state, again.step, again.metrics) == ("completed", 21, first.metrics)
    assert_equal(final_state(run), state)


def test_new_settings_of_the_optimizer_apply(make_run: MakeRun, fit: Fit) -> None:
    """Not those that the checkpoint holds."""
    config, run = make_run(*EVERYTHING)
    fit(config, run, train=20)
    config, _ = make_run(*EVERYTHING, "optimizer.lr=1e-12", "optimizer.weight_decay=0", "optimizer.eps=1e-3")
    before = final_state(run)["state_dict"]
    assert fit(config, run).step == 21
    after = final_state(run)
    group: dict[str, Any] = after["optimizer_states"][0]["param_groups"][0]
    assert (group["weight_decay"], group["eps"]) == (0.0, 1e-3)
    assert group["lr"] < 1e-12
    weight = "network.1.weight"
    assert (after["state_dict"][weight] - before[weight]).abs().max() < 1e-7


@pytest.mark.parametrize(
    ("batches", "step", "epoch", "batch", "expected"),
    [
        (4, 6, 1, 2, (1, 2)),
        (4, 8, 1, 4, (2, 0)),
        (4, 6, 4, 1, (4, 1)),  # epochs had fewer steps: batches were skipped, or accumulated
        (math.inf, 6, 1, 2, (1, 2)),  # the number of epochs is not known
        (math.inf, 10, 2, 2, (3, 0)),
        (4, 10, 3, 0, (3, 0)),
        (4, 38, 9, 3, (9, 0)),  # a run with more epochs
        (5, 7, 2, 6, (2, 3)),  # of one rank with 10 batches per epoch, on two
    ],
)
def test_resume_position(batches, step, epoch, batch, expected, make_config) -> None:
    plan = make_user_plan(
        make_config("trainer.max_steps=10", "trainer.max_epochs=9"), batches, True, False, None
    )
    saved = SavedCheckpoint(step, epoch, batch, {}, None, "lightning", Path())
    ranks = 0.5 if batches == 5 else 1.0
    assert resume_position(saved, plan, 9, ranks, last=False, over=step >= 10) == expected


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_numbers_continue_from_a_saved_state() -> None:
    seed_everything(3)
    for _ in range(700):  # past one refill of the Mersenne twisters
        draw()
    random.gauss(0, 1)  # keeps a spare number
    state = random_states.pack(random_states.get_states())
    expected = [draw() for _ in range(5)]
    seed_everything(4)
    assert [draw() for _ in range(5)] != expected
    random_states.restore(random_states.unpack(state))
    assert [draw() for _ in range(5)] == expected


def test_large_seeds_are_fine() -> None:
    seed_everything(2**40 + 1)
    first = draw()
    seed_everything(2**40 + 1)
    assert draw() == first
