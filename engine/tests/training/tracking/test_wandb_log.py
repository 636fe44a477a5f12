"""Reading W&B's transaction logs, written by W&B itself."""

from pathlib import Path

import pytest

from train_anywhere.training.tracking.wandb import Wandb
from train_anywhere.training.tracking.wandb_log import BLOCK, STEP, logged_points, read_history, read_records

ID = "20261120-101502-a1b2"
STEPS = 400


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of one attempt, of several blocks; one record is larger than a block."""
    folder = tmp_path_factory.mktemp("run")
    tracker = Wandb("p", folder=str(folder), run_id=ID, offline=True, parameters={"long": "x" * 3 * BLOCK})
    for step in range(STEPS):
        tracker.log_metrics({"train/loss": 1 / (step + 1), "val.acc uracy": float("nan")}, step)
    tracker.finalize("completed")
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return file


def test_every_row_is_read(log: Path) -> None:
    rows = list(read_history(log))
    assert log.stat().st_size > 4 * BLOCK
    assert [row[STEP] for row in rows] == list(range(STEPS))
    assert [row["train/loss"] for row in rows] == pytest.approx([1 / (s + 1) for s in range(STEPS)])
    assert all("val.acc uracy" in row for row in rows)


def test_what_is_held_begins_where_training_does(log: Path) -> None:
    run = log.parents[2]
    names = ("train/loss", "val.acc uracy")
    assert logged_points(run, ID, STEPS - 2) == {(n, s) for n in names for s in (STEPS - 2, STEPS - 1)}
    assert len(logged_points(run, ID)) == 2 * STEPS
    assert logged_points(run, "another") == set()


def test_a_log_that_is_cut_short_anywhere(log: Path) -> None:
    """A killed process leaves any number of bytes: whole records count, and nothing is raised."""
    whole = log.read_bytes()
    every = list(read_records(whole))
    for end in [*range(12), *range(0, len(whole), 997), len(whole) - 1]:
        some = list(read_records(whole[:end]))
        assert some == every[: len(some)]
        assert len(some) < len(every)
