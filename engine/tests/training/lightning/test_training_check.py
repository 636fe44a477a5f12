"""A run that trained nothing has failed. Skipped batches are counted in a message."""

import csv

import pytest

from train_anywhere.errors import ProjectError
from train_anywhere.files.removal import print_once

from .conftest import Fit, MakeRun

HERE = "engine.tests.training.lightning.ending_strangers"
SHORT = (
    f"task._target_={HERE}.Learns", "data.batch_size=8", "trainer.max_epochs=2", "monitor.progress=plain", "trainer.accelerator=cpu",
    "trainer.limit_val_batches=0",
)  # fmt: skip
SKIPPED = "batches were skipped (training_step or the loader returned None)"
NOTES = {
    "skips all": f"nothing was trained: all 8 {SKIPPED}",
    "the parameters of another": "nothing was trained: no parameter of the optimizer ever had a gradient",
    "skips one": "2 of 8 batches were skipped",
    "no optimizer": "the module has no optimizer, so no weight was changed.",
    "by hand": "",
    "": "",
}


def test_no_step_is_an_error(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run("task.how='leaves each epoch'", f"data._target_={HERE}.rows", *SHORT)
    with pytest.raises(ProjectError, match=r"nothing was trained: no batch reached training_step\."):
        fit(config, run)


@pytest.mark.parametrize("how", NOTES)
@pytest.mark.quick("skips one", "")
def test_a_part_was_trained(how, make_run, fit, capsys) -> None:
    config, run = make_run(f"task.how='{how}'", f"data._target_={HERE}.rows", *SHORT)
    assert fit(config, run).state == "completed"
    printed = capsys.readouterr().out
    assert NOTES[how] in printed and ("skipped" in printed) == ("skip" in how)


def test_a_loader_without_batches(make_run: MakeRun, fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    config, run = make_run("task.how=''", f"data._target_={HERE}.gaps", *SHORT)
    fit(config, run)
    assert "nothing was trained: all 8 batches were skipped" in capsys.readouterr().out


def test_metrics_named_like_a_column_get_another_one_with_a_note(make_run, fit, capsys) -> None:
    print_once.cache_clear()
    how = "task.how='a metric called step'"
    config, run = make_run(how, f"data._target_={HERE}.rows", *SHORT, "trainer.log_every_n_steps=1")
    metrics = fit(config, run).metrics
    said = capsys.readouterr().err
    for name in ("epoch", "step", "lr"):
        assert said.count(f"the metric '{name}' is written as 'metric/{name}'") == 1
    rows = [*csv.DictReader(run.metrics_csv.read_text().splitlines())]
    assert [int(row["step"]) for row in rows] == sorted(int(row["step"]) for row in rows)
    assert {name: rows[-1][name] for name in ("step", "epoch")} == {"step": "8", "epoch": "2"}
    assert {rows[-1][f"metric/{name}"] for name in ("step", "epoch", "lr")} == {"5", "7", "3"}
    assert {row["lr"] for row in rows} == {"0.1"} and metrics["metric/lr"] == 3.0


def test_a_complete_run_that_is_resumed_trains_nothing_more(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run("task.how=''", f"data._target_={HERE}.rows", *SHORT)
    assert [fit(config, run).state for _ in range(2)] == ["completed", "completed"]
