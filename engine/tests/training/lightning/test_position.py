"""The position at which a run resumes."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.schema import Config
from train_anywhere.training.lightning.checkpoint.position import resume_position
from train_anywhere.training.plan import make_user_plan

MakeConfig = Callable[..., Config]


def saved(step: int, epoch: int, batch: int) -> SavedCheckpoint:
    return SavedCheckpoint(
        path=Path(), step=step, epoch=epoch, batch=batch, metrics={}, value=None, framework="lightning"
    )


@pytest.mark.parametrize(
    ("batches", "checkpoint", "expected"),
    [
        (4, saved(6, 1, 2), (1, 2)),
        (4, saved(8, 1, 4), (2, 0)),
        (4, saved(6, 4, 1), (4, 1)),  # epochs had fewer steps: batches were skipped, or accumulated
        (math.inf, saved(6, 1, 2), (1, 2)),  # the number of epochs is not known
        (math.inf, saved(10, 2, 2), (3, 0)),
        (4, saved(10, 3, 0), (3, 0)),
        (4, saved(38, 9, 3), (9, 0)),  # a run with more epochs
    ],
)
def test_resume_position(batches, checkpoint, expected, make_config) -> None:
    config = make_config("trainer.max_steps=10", "trainer.max_epochs=9")
    plan = make_user_plan(config, batches, True, False, None)
    over = checkpoint.step >= 10
    assert resume_position(checkpoint, plan, 9, 1.0, last=False, over=over) == expected


def test_more_ranks_train_the_rest_of_the_epochs(make_config: MakeConfig) -> None:
    """One rank has made 26 steps of 10 batches per epoch, and two make 20 in all."""
    plan = make_user_plan(make_config("trainer.max_epochs=4"), 5, True, False, None)
    assert resume_position(saved(26, 2, 6), plan, 4, 0.5, last=False, over=False) == (2, 3)
