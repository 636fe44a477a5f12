"""Exceptions of user code are errors, also a StopIteration of a row. One of a step ends the epoch, as with Lightning alone.

A run that trained nothing has failed. Skipped batches are counted in a message.
"""

import csv
import traceback

import pytest

from train_anywhere.errors import ProjectError, SignalsAsErrors
from train_anywhere.files.removal import print_once

from .conftest import Fit, MakeRun
from .ending_strangers import RAISED

HERE = "engine.tests.training.lightning.ending_strangers"
SHORT = (
    "data.batch_size=8", "trainer.max_epochs=1", "monitor.progress=none", "trainer.accelerator=cpu", "checkpoint.monitor=val_loss",
)  # fmt: skip
CASES = [
    *((name, f"task._target_={HERE}.Ends") for name in RAISED if name != "StopIteration"),
    *((name, f"data._target_={HERE}.rows") for name in ("StopIteration", "SystemExit")),
    ("StopIteration", f"data._target_={HERE}.rows", "data.part=val"),
    ("StopIteration", f"data._target_={HERE}.collated"),
    ("StopIteration", f"data._target_={HERE}.loaders", "data.processes=0"),
    ("StopIteration", f"data._target_={HERE}.loaders", "data.processes=1"),
    ("SystemExit", f"data._target_={HERE}.rows", "data.workers=1"),
]


def words_of(name: str, *words: str) -> list[str]:
    """The overrides of a case: the exception goes to the section of its first one."""
    first = (f"task._target_={HERE}.Ends", f"data._target_={HERE}.rows")
    given = {word.partition("=")[0]: word for word in (*first, *words)}
    return [*given.values(), f"{words[0].partition('.')[0]}.raises={name}", *SHORT]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
@pytest.mark.quick(
    "StopIteration data._target_=engine.tests.training.lightning.ending_strangers.rows data.part=val",
    "SystemExit data._target_=engine.tests.training.lightning.ending_strangers.rows",
)
def test_it_is_an_error_with_the_line_of_the_user(case: tuple[str, ...], make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*words_of(*case))
    with pytest.raises(Exception) as caught, SignalsAsErrors():  # as the rank does
        fit(config, run)
    text = "".join(traceback.format_exception(caught.value))
    assert case[0] in text and "in misbehave" in text


def test_an_iterator_ends_as_iterators_do(make_run: MakeRun, fit: Fit) -> None:
    words = [f"task._target_={HERE}.Ends", f"data._target_={HERE}.streams", "trainer.limit_val_batches=9"]
    config, run = make_run(*words, *SHORT)
    assert fit(config, run).state == "completed"


def test_a_step_with_the_iterator_ends_the_epoch(make_run: MakeRun, fit: Fit) -> None:
    words = [f"task._target_={HERE}.Reads", f"data._target_={HERE}.rows", "trainer.num_sanity_val_steps=0"]
    config, run = make_run(*words, *SHORT)
    outcome = fit(config, run)
    assert (outcome.state, outcome.step) == ("completed", 2)


LEARNS = (
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
    config, run = make_run("task.how='leaves each epoch'", f"data._target_={HERE}.rows", *LEARNS)
    with pytest.raises(ProjectError, match=r"nothing was trained: no batch reached training_step\."):
        fit(config, run)


@pytest.mark.parametrize("how", NOTES)
@pytest.mark.quick("skips one", "")
def test_a_part_was_trained(how, make_run, fit, capsys) -> None:
    config, run = make_run(f"task.how='{how}'", f"data._target_={HERE}.rows", *LEARNS)
    assert fit(config, run).state == "completed"
    printed = capsys.readouterr().out
    assert NOTES[how] in printed and ("skipped" in printed) == ("skip" in how)


def test_a_loader_without_batches(make_run: MakeRun, fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    config, run = make_run("task.how=''", f"data._target_={HERE}.gaps", *LEARNS)
    fit(config, run)
    assert "nothing was trained: all 8 batches were skipped" in capsys.readouterr().out


def test_metrics_named_like_a_column_get_another_one_with_a_note(make_run, fit, capsys) -> None:
    print_once.cache_clear()
    how = "task.how='a metric called step'"
    config, run = make_run(how, f"data._target_={HERE}.rows", *LEARNS, "trainer.log_every_n_steps=1")
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
    config, run = make_run("task.how=''", f"data._target_={HERE}.rows", *LEARNS)
    assert [fit(config, run).state for _ in range(2)] == ["completed", "completed"]
