"""`${oc.env:NAME}`: the value of a variable is not written anywhere."""

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import fill_variables, load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir

Train = Callable[..., "CompletedProcess[str]"]
Make = Callable[..., tuple[Config, RunDir]]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # stands in for a secret; the name of a metric, so that it is a valid value too
    monkeypatch.setenv("TOKEN", "val/loss")
    yield


def test_the_name_is_kept_and_the_value_is_read_when_loading(make_run: Make) -> None:
    config, run = make_run(
        "checkpoint.monitor=${oc.env:TOKEN}",
        "checkpoint.mode=min",
        "trainer.early_stopping.monitor=${checkpoint.monitor}",
    )
    assert config.checkpoint.monitor == "val/loss"
    assert yaml.safe_load(run.config.read_text())["checkpoint"]["monitor"] == "${oc.env:TOKEN}"
    assert load(yaml.safe_load(run.config.read_text())).checkpoint.monitor == "val/loss"
    # the same if another key refers to it
    assert yaml.safe_load(run.config.read_text())["trainer"]["early_stopping"]["monitor"] == "${oc.env:TOKEN}"


def test_folders_are_filled_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    tree = compose(["paths.results=${oc.env:SCRATCH}/results", "paths.data=${oc.env:NOT_SET,/data}"])
    assert tree["paths"] == {"results": "/scratch/me/results", "data": "/data"}


@pytest.mark.parametrize("key", ["cluster.comment", "cluster.setup", "container.image", "name"])
def test_a_variable_in_the_batch_script_is_refused(key: str) -> None:
    value = "['export T=${oc.env:TOKEN}']" if key == "cluster.setup" else "${oc.env:TOKEN}"
    with pytest.raises(ConfigError) as refused:
        load(compose(["cluster=slurm", f"{key}={value}"]))
    [problem, *_] = refused.value.problems
    assert problem.startswith(f"{key}=") and "would be written into the run folder" in problem
    assert "val/loss" not in str(refused.value)


def test_a_variable_that_is_not_set_is_a_sentence() -> None:
    sentence = "the environment variable NOT_SET is not set here; export it."
    with pytest.raises(ConfigError, match=sentence):
        compose(["paths.results=${oc.env:NOT_SET}"])
    with pytest.raises(ConfigError, match=sentence):
        load(compose(["checkpoint.monitor=${oc.env:NOT_SET}"]))


def test_defaults_and_lists() -> None:
    problems: list[str] = []
    tree = {
        "a": ["${oc.env:NOT_SET,7}-${oc.env:TOKEN}"],
        "b": "${oc.env:NOT_SET,null}",
        "c": "${other}",
        "d": 1,
    }
    assert fill_variables(tree, problems) == {"a": ["7-val/loss"], "b": None, "c": "${other}", "d": 1}
    assert not problems


def test_no_file_of_a_run_holds_the_value(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKEN")
    words = ["checkpoint.local=${oc.env:TOKEN}", "trainer.fast_dev_run=true", "model=mlp"]
    secret = str(tmp_path / "hunter2")
    done = train(*words, f"paths.results={tmp_path / 'results'}", env={"TOKEN": secret})
    assert done.returncode == 0, done.stderr
    run = (tmp_path / "results" / "latest").resolve()
    assert [f for f in run.rglob("*") if f.is_file() and b"hunter2" in f.read_bytes()] == []
    without = train("--run", str(run))
    assert without.returncode == 2
    assert without.stderr == (
        "error: checkpoint.local='${oc.env:TOKEN}': the environment variable TOKEN is not set here; export it.\n"
    )
