"""The position at which a run resumes."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.schema import Config
from train_anywhere.training.lightning.checkpoint.position import resume_position, user_position
from train_anywhere.training.plan import make_plan, make_user_plan

MakeConfig = Callable[..., Config]


def saved(step: int, epoch: int, batch: int) -> SavedCheckpoint:
    return SavedCheckpoint(
        path=Path(), step=step, epoch=epoch, batch=batch, metrics={}, value=None, framework="lightning"
    )


@pytest.mark.parametrize(
    ("overrides", "checkpoint", "expected"),
    [
        ([], None, (0, 0)),
        ([], saved(13, 1, 3), (1, 3)),
        ([], saved(20, 2, 0), (2, 0)),
        ([], saved(20, 1, 10), (1, 10)),  # its validation is left
        (["trainer.limit_val_batches=0"], saved(20, 1, 10), (2, 0)),  # there is none any more
        (["trainer.limit_train_batches=5"], saved(6, 0, 6), (1, 0)),  # this epoch is over by now
        (["trainer.max_epochs=1"], saved(13, 1, 3), (1, 0)),  # so is the run
        (["trainer.max_steps=13"], saved(13, 1, 3), (2, 0)),
        (["trainer.max_steps=14"], saved(13, 1, 3), (1, 3)),
        ([], saved(50, 4, 10), (4, 10)),
        ([], saved(50, 5, 0), (5, 0)),
    ],
)
@pytest.mark.quick("overrides2-checkpoint2-expected2", "overrides4-checkpoint4-expected4")
def test_resume_position(
    overrides: list[str],
    checkpoint: SavedCheckpoint | None,
    expected: tuple[int, int],
    make_config: MakeConfig,
) -> None:
    config = make_config("data.batch_size=100", "trainer.max_epochs=5", *overrides)
    plan = make_plan(config, 10, 1, 1, 1)
    assert resume_position(checkpoint, config.trainer, plan) == expected


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
def test_position_in_the_loaders_of_a_user(
    batches: float, checkpoint: SavedCheckpoint, expected: tuple[int, int], make_config: MakeConfig
) -> None:
    config = make_config("trainer.max_steps=10", "trainer.max_epochs=9")
    plan = make_user_plan(config, batches, True, False, None)
    assert user_position(checkpoint, plan, 9, 1.0, last=False) == expected
