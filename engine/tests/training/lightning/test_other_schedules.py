"""Torch's schedules and optimizers for a native task step in time and resume bit for bit."""

import pytest

from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir

from .conftest import Fit, MakeRun, assert_resumes

TABLE = (
    "task=regression", "data=friedman", "data.length=480", "data.val_length=96", "model=mlp", "model.hidden=[8]",
)  # fmt: skip
SHORT = (*TABLE, "trainer.max_epochs=3", "monitor.progress=none", "trainer.log_every_n_steps=1")
CYCLE = ("schedule._target_=torch.optim.lr_scheduler.OneCycleLR", "schedule.max_lr=0.1")
PLATEAU = (
    "schedule._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "schedule.interval=epoch", "schedule.patience=0",
    "schedule.threshold=0.5",
)  # fmt: skip


def rates(run: RunDir) -> list[float]:
    header, *rows = (line.split(",") for line in run.metrics_csv.read_text().splitlines())
    return [float(row[header.index("lr")]) for row in rows if row[header.index("lr")]]


@pytest.mark.parametrize("schedule", [CYCLE, PLATEAU], ids=["each step", "each epoch"])
@pytest.mark.parametrize("place", [{"train": 8}, {"val": 2}, {"train": 10}], ids=str)
@pytest.mark.quick("{'train': 10}-each step")
def test_stop_and_resume_changes_no_bit(schedule, place, make_run, fit) -> None:
    words = (*SHORT, *schedule, "optimizer._target_=torch.optim.NAdam", "optimizer.no_decay=[bias]")
    assert_resumes(make_run, fit, words, rows=15, **place)


def test_a_cycle_is_asked_at_each_step(make_run: MakeRun, fit: Fit) -> None:
    """It has the run's length, and the row of a step has the rate of that step."""
    config, run = make_run(*SHORT, *CYCLE)
    fit(config, run)
    found = rates(run)
    assert (
        len(found) == 15
        and found[0] == pytest.approx(0.1 / 25)
        and max(found) == pytest.approx(0.1, rel=0.05)
    )
    assert found[-1] == pytest.approx(0.1 / 25 / 1e4)


def test_a_plateau_must_be_sought_in_the_right_direction(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*SHORT, *PLATEAU, "checkpoint.monitor=val/r2")
    with pytest.raises(ConfigError, match=r"watches val/r2, of which the max is best; use schedule.mode=max"):
        fit(config, run)


def test_averaged_weights_of_lightning(make_run: MakeRun, fit: Fit) -> None:
    """A callback that changes the weights at the end."""
    words = (
        "callbacks.swa._target_=lightning.pytorch.callbacks.StochasticWeightAveraging",
        "callbacks.swa.swa_lrs=0.01",
    )
    config, run = make_run(*SHORT, *words, "callbacks.swa.swa_epoch_start=1")
    outcome = fit(config, run)
    assert (outcome.state, outcome.epoch, outcome.step) == ("completed", 3, 15)
