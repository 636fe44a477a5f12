from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import SubmitError
from train_anywhere.runs.facts import best_value
from train_anywhere.slurm.status.best import find_best, rerun_command, sweep_result
from train_anywhere.slurm.status.find_runs import RunEntry, read_entry

Make = Callable[..., RunEntry]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make("a", "val/acc", "max", 0.5, 0.9)`: a run with these values of a monitored metric."""

    def run(name: str, metric: str | None, mode: str | None, *values: object, column: str = "") -> RunEntry:
        folder = tmp_path / "digits" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(
            f"checkpoint: {{monitor: {metric or 'null'}, mode: {mode or 'null'}}}\n"
        )
        rows = "".join(f"{10 * (at + 1)},1,{value}\n" for at, value in enumerate(values))
        (folder / "metrics.csv").write_text(f"step,epoch,{column or metric}\n{rows}")
        return read_entry(folder)

    return run


def test_the_best_of_all_epochs_of_all_runs(make: Make) -> None:
    runs = [
        make("a", "val/acc", "max", 0.5, 0.9, 0.7),
        make("b", "val/acc", "max", 0.8, "", "nan"),
        make("c", "val/mse", "min", 7),
    ]
    found = find_best(runs)
    assert (found.id, found.metric, found.value, found.step) == ("a", "val/acc", 0.9, 20)
    assert (found.compared, found.left_out) == (2, 1)


def test_the_least_where_that_is_best(make: Make) -> None:
    runs = [make("a", "val/mse", "min", 3, 2), make("b", "val/mse", "min", 1, 4)]
    assert (find_best(runs).id, find_best(runs).value) == ("b", 1.0)
    assert find_best(runs, mode="max").value == 4.0


def test_a_metric_may_have_its_name_in_keras(make: Make) -> None:
    """The configuration may name it so too. A metric of exactly this name comes first."""
    runs = [
        make("a", "val_accuracy", "max", 0.5, 0.9, column="val/accuracy"),
        make("b", "val/accuracy", "max", 0.8),
    ]
    for metric in (None, "val_accuracy", "val/accuracy"):
        assert (find_best(runs, metric).id, find_best(runs, metric).compared) == ("a", 2)
    own = make("c", "val_loss", "min", 3, 2)
    assert find_best([own], "val_loss").value == 2


def test_without_a_curve_the_end_of_a_run_counts(make: Make) -> None:
    other = make("b", "val/acc", "max")
    (other.folder.path / "metrics.csv").unlink()
    (other.folder.path / "run.json").write_text('{"format": 2, "step": 70, "metrics": {"val/acc": 0.6}}')
    found = find_best([make("a", "val/acc", "max", 0.5), other])
    assert (found.id, found.value, found.step, found.compared) == ("b", 0.6, 70, 2)


def test_a_configuration_that_can_not_be_read(make: Make) -> None:
    damaged = make("a", "val/acc", "max", 0.5)
    damaged.folder.config.write_text("checkpoint: [")
    assert find_best([damaged, make("b", "val/acc", "max", 0.4)]).id == "a"


def test_what_a_sweeper_is_told(make: Make, make_config: Callable[..., Config]) -> None:
    """The best value of any validation is the result. An incomplete run raises the reason."""
    from hydra.core.utils import JobStatus

    from train_anywhere.plugins.launchers import _make_job_return

    config = make_config("model=mlp")
    run = make("a", "val/acc", "max", 0.5, 0.9, "nan", 0.7).folder
    assert (best_value(run, "val/acc", "max"), best_value(run, "val/acc", "min")) == (0.9, 0.5)
    assert best_value(run, "val/loss", "min") is None
    run.update(state="completed")
    good = _make_job_return(["seed=1"], sweep_result(run, config.checkpoint))
    assert (good.status, good.return_value, good.overrides) == (JobStatus.COMPLETED, 0.9, ["seed=1"])
    run.update(state="failed")
    bad = _make_job_return([], sweep_result(run, config.checkpoint))
    assert bad.status == JobStatus.FAILED
    with pytest.raises(SubmitError, match="a is failed, not completed: it has no result"):
        _ = bad.return_value


def test_how_to_train_it_again(make: Make) -> None:
    run = make("a", "val/acc", "max", 0.5).folder
    assert rerun_command(run) == ""
    run.overrides.write_text("cluster=slurm\nwait=true\n++model.hidden=[8, 6]\nseed=2\n")
    assert rerun_command(run).endswith("train.py cluster=slurm 'model.hidden=[8, 6]' seed=2")
