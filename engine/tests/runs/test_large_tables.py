"""Tables of any size have curves, and a comparison of many runs reads no YAML."""

from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.files.atomic import LARGEST
from train_anywhere.runs import facts
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.best import find_best

MakeRun = Callable[..., tuple[Config, RunDir]]


def test_a_table_above_the_limit_of_small_files_has_curves(tmp_path: Path) -> None:
    run, rows = RunDir(tmp_path), 420_000
    with run.metrics_csv.open("w") as file:
        file.write("epoch,step,train/loss,val/loss\n")
        file.writelines(
            f"{n // 1000},{n},{1 / (n + 1):.30f},{2.0 if n % 1000 == 0 else ''}\n" for n in range(rows)
        )
    assert run.metrics_csv.stat().st_size > LARGEST
    curves = facts.curves(run.metrics_csv)
    assert {name: len(points) for name, points in curves.items()} == {"train/loss": rows, "val/loss": 420}
    assert curves["val/loss"][-1] == (419_000, 2.0)
    assert len(facts.read_curve(run, "val/loss")) == 420


def test_best_of_many_runs_reads_no_config(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config.yaml takes 100 times as long to parse as a run.json."""
    runs = [make_run()[1] for _ in range(3)]
    for number, run in enumerate(runs):
        run.update(state="completed", monitor="val/acc", mode="max")
        run.metrics_csv.write_text(f"step,val/acc\n1,0.{number}\n2,0.1\n")

    def refuse(run: RunDir) -> None:
        raise AssertionError(f"{run.config} was read")

    monkeypatch.setattr(facts, "read_config", refuse)
    found = find_best([find_runs.read_entry(run.path) for run in runs])
    assert (found.id, found.value) == (runs[2].id, 0.2)
