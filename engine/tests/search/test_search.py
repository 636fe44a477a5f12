"""Searches on this machine, and trials that are requeued, pruned, refused or find a stale lock."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState

from tools.testing.processes import run_python, start_python, wait_until
from tools.testing.weights import info
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.features.search import Search, Trial, open_study
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import read_json
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import load_frozen, read_frozen, write_frozen
from train_anywhere.runs.study import JOURNAL, Space, Study, members
from train_anywhere.search.loop import find_folder

Train = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Trial]
LR = {"name": "FloatDistribution", "attributes": {"step": None, "low": 0.001, "high": 0.1, "log": True}}
MODEL = {"name": "CategoricalDistribution", "attributes": {"choices": ["cnn", "mlp"]}}


@pytest.fixture
def trial(make_run: Callable[..., tuple[Config, RunDir]], tmp_path: Path) -> Start:
    """Start trial `number` of a study, as its process or job does."""
    base, _ = make_run("optimizer.lr=0.001", "model=cnn")

    def start(number: int, pruner: str = "none", **space: Mapping[str, Any]) -> Trial:
        study = Study(["x"], 9, "random", pruner, 1, Space([], space or {"optimizer.lr": LR, "model": MODEL}))
        study.write(tmp_path / "study")
        run = RunDir(tmp_path / f"study-{number}")
        if not run.config.exists():
            run.path.mkdir()
            write_frozen(run, base, ["optimizer.lr=0.001", "model=cnn"])
            run.update(state="queued")
        return Trial(run, load(read_frozen(run) | {"study": "study"}))

    return start


def log_metrics(run: RunDir, *values: float) -> None:
    rows = "".join(f"{step},{value}\n" for step, value in enumerate(values, 1))
    run.metrics_csv.write_text(f"step,val/acc\n{rows}")


class Looks:
    """An event that is set after some looks at it."""

    def __init__(self, number: int) -> None:
        self.left = number

    def wait(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


def states(trial: Trial) -> list[TrialState]:
    return [one.state for one in trial._study.get_trials(deepcopy=False)]


def test_a_trial_has_its_values_in_its_run_folder(trial: Start) -> None:
    """The chosen model replaces all keys of the other one, and nothing else of the configuration changes."""
    found = {}
    for number in range(6):
        one = trial(number)
        values = read_json(one.run.path / "trial.json")["values"]
        config = load_frozen(one.run)
        assert (config.optimizer.lr, config.model.name) == (values["optimizer.lr"], values["model"])
        assert one.run.overrides.read_text().splitlines() == [f"{k}={v}" for k, v in values.items()]
        found[config.model.name] = set(read_frozen(one.run)["model"])
    assert found.keys() == {"cnn", "mlp"} and "hidden" in found["mlp"] - found["cnn"]


def test_a_requeued_trial_continues_with_its_values(trial: Start) -> None:
    """A best value in any validation is the result, and a trial without an end has none."""
    first = trial(0)
    first.run.update(state="preempted")
    first.finish()
    assert states(first) == [TrialState.RUNNING]
    before = first.run.config.read_text()
    again = trial(0)
    assert again.run.config.read_text() == before and len(states(again)) == 1
    log_metrics(again.run, 0.2, 0.7, 0.4)
    again.run.update(state="completed")
    again.finish()
    [done] = again._study.get_trials(deepcopy=False)
    assert (done.state, done.value) == (TrialState.COMPLETE, 0.7)


def test_a_failed_trial_that_is_submitted_again_has_a_result(trial: Start) -> None:
    trial(0).run.update(state="failed")
    trial(0).finish()
    again = trial(0)
    log_metrics(again.run, 0.7)
    again.run.update(state="completed")
    again.finish()
    assert states(again) == [TrialState.FAIL, TrialState.COMPLETE]
    assert again._study.best_params == read_json(again.run.path / "trial.json")["values"]


def test_a_hopeless_trial_is_stopped(trial: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """The median of earlier trials decides, from the sixth on; nan is no measurement."""
    for number in range(5):
        good = trial(number, "median")
        log_metrics(good.run, 0.8, 0.9)
        good.watch(Looks(1), lambda: pytest.fail("stopped"))  # type: ignore[arg-type]
        good.run.update(state="completed")
        good.finish()
    bad, stopped = trial(5, "median"), Event()
    log_metrics(bad.run, float("nan"), 0.1)
    bad.watch(Event(), stopped.set)
    bad.run.update(state="preempted")
    bad.finish()
    assert stopped.is_set() and states(bad)[-1] == TrialState.PRUNED
    found = bad.run.read_info()
    assert found["state"] == "cancelled"
    assert found["why"].startswith("pruned at its validation 2: val/acc 0.1 is worse than the median")
    assert "trial 5 of 9: pruned at its validation 2" in capsys.readouterr().out


def test_refused_values_are_a_failed_trial(trial: Start, tmp_path: Path) -> None:
    wrong = {"name": "CategoricalDistribution", "attributes": {"choices": [96, *range(-50, 0)]}}
    space = {
        "optimizer.lr": {**LR, "attributes": {**LR["attributes"], "high": 0.0011}},
        "data.batch_size": wrong,
    }
    for number in range(3):
        with pytest.raises(ConfigError, match=r"data\.batch_size=-"):
            trial(number, **space)
    with pytest.raises(ConfigError, match=r"the first 3 trials have failed, so no other one is started"):
        trial(3, **space)
    states = [run.read_info()["state"] for run in members(tmp_path / "study").values()]
    assert states == ["failed"] * 3 + ["cancelled"]


@pytest.mark.slow
def test_a_stale_lock_is_taken_over(trial: Start, tmp_path: Path) -> None:
    """A process was killed while it wrote the journal: its lock stays, and maybe half a line."""
    trial(0)
    journal = tmp_path / "study" / JOURNAL
    os.symlink(journal, f"{journal}.lock")
    with open(journal, "a") as file:
        file.write('{"op_code": 4, "wor')
    start = time.monotonic()
    one = trial(1)
    assert 20 < time.monotonic() - start < 60
    log_metrics(one.run, 0.5)
    one.run.update(state="completed")
    one.finish()
    assert states(trial(1))[1] == TrialState.COMPLETE


def test_a_damaged_journal_is_one_message(trial: Start, tmp_path: Path) -> None:
    one = trial(0)
    (tmp_path / "study" / JOURNAL).write_text("[" * 50 + "\n" + "{}\n")
    feature = Search()
    feature.config = load(read_frozen(one.run) | {"study": "study"})
    job = SimpleNamespace(run=one.run, stop=None)
    with (
        pytest.raises(ConfigError, match="the journal of the study study can't be used"),
        feature.supervise(job),
    ):
        pytest.fail("the ranks started")


def test_the_same_command_finds_its_study(tmp_path: Path) -> None:
    def study(*arguments: str) -> Study:
        return Study(arguments, 2, "tpe", "none", 1, Space([], {}))

    folder = tmp_path / "20260101-000000-aaaa"
    study("x=interval(0,1)").write(folder)
    assert find_folder(tmp_path, study("x=interval(0,1)"), None, resumes=True) == folder
    assert find_folder(tmp_path, study("x=interval(0,1)"), None, resumes=False) != folder
    assert find_folder(tmp_path, study("x=1,2"), None, resumes=True) != folder
    for number in range(2):
        RunDir(folder.with_name(f"{folder.name}-{number}")).path.mkdir()
        members(folder)[number].update(state="completed")
    assert find_folder(tmp_path, study("x=interval(0,1)"), None, resumes=True) != folder
    with pytest.raises(ConfigError, match="is a study of another command: x=interval"):
        study("x=1,2").write(folder)


SEARCH = (
    "-m", "hydra/sweeper=optuna", "optimizer.lr=tag(log,interval(1e-3,1e-1))", "model.hidden=[8],[32]", "model=mlp",
)  # fmt: skip


def test_on_this_machine(train: Train, tmp_path: Path) -> None:
    """Two run at once, and the printed command for the best one trains it again."""
    results = tmp_path / "results"
    words = (
        "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2", "trainer.max_epochs=1", "monitor.tensorboard=false",
    )  # fmt: skip
    asked = (*SEARCH, *words, f"paths.results={results}")
    shown = train(*asked, "dry_run=true")
    assert "FloatDistribution(high=0.1, log=True, low=0.001" in shown.stdout and not results.exists(), (
        shown.stderr
    )
    done = train(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    [study] = results.glob("digits/*/study.json")
    rows = re.findall(rf"^({study.parent.name}-[01]) +digits +completed ", done.stdout, re.M)
    assert len(rows) == 2 and re.search(r"^Best: +val/acc 0\.\d+  ", done.stdout, re.M), done.stdout
    found = run_python(str(ROOT / "src" / "jobs.py"), "best", study.parent.name, "--results", str(results))
    again = re.search(r"^Again: \S+ \S+train\.py (.*)$", found.stdout, re.M)
    assert again, found.stdout + found.stderr
    best = results / "digits" / found.stdout.split()[2]
    assert train(*shlex.split(again[1])).returncode == 0
    assert info((results / "latest").resolve())["metrics"] == info(best)["metrics"]


@pytest.mark.slow
def test_the_same_command_resumes_after_an_interrupt(tmp_path: Path) -> None:
    """The interrupted trial continues from its checkpoint."""
    words = ("hydra.sweeper.n_trials=2", "trainer.max_epochs=40", "monitor.tensorboard=false")
    results = tmp_path / "results"
    command = ["src/train.py", *SEARCH, *words, f"paths.results={results}"]
    with start_python(*command, stderr=subprocess.STDOUT) as first:
        wait_until(lambda: [*results.glob("digits/*-0/checkpoints/newest")], first)
        first.send_signal(signal.SIGINT)
        printed = first.communicate(timeout=60)[0]
    assert first.returncode == 130 and "1 trial stopped. The same command resumes" in printed, printed
    second = run_python(*command)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "resumed: 0 of 2 trials are done" in second.stdout and "trial 0 of 2: continues" in second.stdout
    [study] = results.glob("digits/*/study.json")
    runs = members(study.parent)
    assert [run.read_info()["state"] for run in runs.values()] == ["completed"] * 2
    assert len(runs[0].read_info()["attempts"]) == 2
    known = open_study(Study([], 2, "tpe", "none", 1, Space([], {})), study.parent, "max", 0)
    assert [one.state for one in known.trials] == [TrialState.COMPLETE] * 2
