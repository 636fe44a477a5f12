"""Random programs do the same with this project as with plain Lightning. `run.py` runs more."""

import json

import pytest

from engine.tests.differential.forks import compare
from engine.tests.differential.lightning.check import INTENDED
from engine.tests.differential.table import read_rows


def test_the_table_has_the_rows_that_the_test_knows() -> None:
    rows = read_rows("lightning")
    assert rows.keys() == INTENDED.keys()
    assert all(rows.values())


@pytest.mark.parametrize(("seed", "programs"), [(0, 34), (1000, 46)])
@pytest.mark.quick("0-34")
def test_programs_do_the_same_as_with_lightning_alone(seed: int, programs: int) -> None:
    """Seed 40319: a hook of a save reads metrics early, in the check at the start. 320028: `should_stop` waits for `min_epochs`."""
    compare("lightning", "--programs", str(programs), "--seed", str(seed), "--also", "40319", "320028")


DIFFERED = {
    20005: "a loader that saves its position is stopped at the end of an epoch",
    20071: "metrics are read before the first batch after a resume",
    20093: "a validation is stopped that shares a torchmetric with training",
    20013: "the test is stopped",
    20037: "an epoch reads a fixed number of batches of an IterableDataset",
    50046: "the validation after the last step of max_steps is stopped",
    50067: "rows with noise are read ahead of the step, which draws random numbers, too",
    50073: "on_train_start logs a torchmetric, which was read before",
    120053: "the last step of max_steps is stopped, within an epoch",
    120076: "a run that is over by max_steps has a loader without a length",
    510122: "a short loader of max_size_cycle has ended for the second time in its epoch",
    510124: "a hook before a validation that was stopped draws random numbers",
    510228: "the same CombinedLoader is loaded again at the start of an epoch",
    510250: "as 510122, on which the epoch's number depends",
    720064: "the validation loaders are opened again in each epoch",
    9102: "a validation is stopped that follows should_stop",
    12113: "a hook of a validation, whose loaders are opened late, reads reload_dataloaders_every_n_epochs",
    120080: "GradientAccumulationScheduler has changed the number of batches of a step",
}
"""Programs whose resumed run has differed, by seed."""


@pytest.mark.parametrize("programs", ["2", "12"])
@pytest.mark.quick("2")
def test_programs_resume_to_the_same_result(programs: str) -> None:
    compare("lightning", "--programs", programs, "--seed", "2000", "--stops", "--also", *map(str, DIFFERED))


@pytest.mark.parametrize("programs", ["1", "4"])
@pytest.mark.quick("1")
def test_programs_on_two_ranks_resume_to_the_same_result(programs: str) -> None:
    """Seed 130050: on_train_start logs with arguments that differ from the checkpoint's.

    440006, 931012: a hook opens the training loaders in the check at the start, after and before those of the validation.
    """
    words = ("--ranks", "2", "--stops", "--also", "130050", "440006", "931012")
    compare("lightning", "--programs", programs, "--seed", "130000", *words)


def test_a_planted_fault_is_found() -> None:
    spec = {"seed": 1, "data": {"train": [{"kind": "own_iter"}]}}
    found = compare("lightning", "--spec", json.dumps(spec), "--fault", "iter", code=1)
    assert "rows: train" in found
