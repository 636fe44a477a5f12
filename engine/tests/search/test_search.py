"""Searches with scripted trials, and on this machine."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError, SubmitInterrupted
from train_anywhere.files import ROOT
from train_anywhere.launch.processes import ForkServers
from train_anywhere.runs.folder import RunDir
from train_anywhere.search.loop import Search, option_problems
from train_anywhere.search.study import Settings, Space, Study, find_folder, make_folder
from train_anywhere.search.trials import LocalTrials
from train_anywhere.testing.weights import info

Train = Callable[..., subprocess.CompletedProcess[str]]
OPTIONS = {"n_trials": 3, "n_jobs": 1, "sampler": "random", "pruner": "none", "study_name": None}


class Scripted:
    """Trials that reach the states of `ends` at once, and are completed after the last one.

    Args:
        ends: states by number of the trial, one for each of its starts.
    """

    pause = 0.0

    def __init__(self, ends: Mapping[int, Sequence[str]]) -> None:
        self.ends = {number: [*states] for number, states in ends.items()}
        self.began: list[str] = []

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Any:
        if float(words[-1].partition("=")[2]) > 0.99:
            raise ConfigError("x can't be so large.")
        return words

    def format_dry_run(self, config: Config) -> str:
        pytest.fail("a dry run alone shows a configuration")

    def start(self, config: Any, words: Sequence[str], folder: Path) -> str:
        value = float(words[-1].partition("=")[2])
        folder.mkdir()
        (folder / "config.yaml").touch()
        (folder / "metrics.csv").write_text(f"step,val/acc\n1,{value / 2}\n2,{value}\n3,{value / 4}\n")
        self.began.append(folder.name.rpartition("-")[2])
        return "here"

    def resume(self, run: RunDir) -> str:
        self.began.append(run.id.rpartition("-")[2])
        return "here again"

    def read_ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        numbers = {run.id: int(run.id.rpartition("-")[2]) for run in live}
        ended = {name: (self.ends.get(n) or ["completed"]).pop(0) for name, n in numbers.items()}
        if "Ctrl-C" in ended.values():
            raise KeyboardInterrupt
        return {name: state for name, state in ended.items() if state != "runs"}

    def stop(self, run: RunDir) -> None:
        self.ends[int(run.id.rpartition("-")[2])] = ["preempted"]

    def handle_interrupt(self, live: Sequence[RunDir]) -> str:
        return f"{len(live)} stopped."


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., Search]:
    def make(ends: Mapping[int, Sequence[str]], space: Any = None, **wanted: Any) -> Search:
        asked = {
            "trials": 4,
            "at_once": 2,
            "sampler": "random",
            "pruner": "none",
            "seed": 1,
            "metric": "val/acc",
            "mode": "max",
        }
        drawn = {"x": space or FloatDistribution(0, 0.9)}
        make_folder(tmp_path / "study", ["x=interval(0,0.9)"], 4)
        study = Study(tmp_path / "study", Settings(**{**asked, **wanted}), Space((), drawn))
        return Search(study, Scripted(ends), lambda words: {})

    return make


def states(search: Search) -> list[str]:
    return [t.state.name for t in search.study.trials]


def test_a_trial_that_failed_or_was_preempted_does_not_end_the_study(
    search: Callable[..., Search], capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted trial starts again, three times at most. The curve's best value counts."""
    made = search({0: ["failed"], 1: ["runs", "node_fail", "runs"], 2: ["preempted"] * 9})
    made.run()
    assert states(made) == ["FAIL", "COMPLETE", "FAIL", "COMPLETE"]
    assert [made.runner.began.count(n) for n in "0123"] == [1, 2, 3, 1]
    for trial in (made.study.trials[1], made.study.trials[3]):
        assert trial.value == pytest.approx(trial.params["x"])
    rows = re.findall(r"^(\d)  +(\S+)  +\S+$", capsys.readouterr().out, re.M)
    assert [value for _, value in rows][2:] == ["failed", "failed"] and float(rows[0][1]) >= float(rows[1][1])


def test_an_interrupted_study_goes_on(search: Callable[..., Search], tmp_path: Path) -> None:
    """The trials are the same: a running one is read, one without a folder failed."""
    first = search({1: ["Ctrl-C"]})
    with pytest.raises(SubmitInterrupted, match=r"2 stopped\. The same command resumes .*study"):
        first.run()
    first.study.ask()
    second = search({})
    second.run()
    assert states(second) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    assert second.runner.began == ["3"]
    assert len({t.params["x"] for t in second.study.trials}) == 4


def test_values_that_are_refused_are_a_failed_trial(search: Callable[..., Search]) -> None:
    made = search({}, FloatDistribution(0.9, 1), trials=30)
    made.run()
    assert {*states(made)} == {"FAIL", "COMPLETE"}


def test_where_every_trial_fails_it_ends(search: Callable[..., Search]) -> None:
    made = search({n: ["failed"] for n in range(30)}, trials=30)
    with pytest.raises(SubmitError, match=r"the first [34] trials have failed"):
        made.run()


def test_hopeless_trials_are_stopped(search: Callable[..., Search], tmp_path: Path) -> None:
    """The median of earlier trials decides, from the sixth on, and run.json records it."""
    made = search({n: ["runs"] * 3 for n in range(20)}, trials=20, at_once=1, pruner="median")
    made.run()
    pruned = [t for t in made.study.trials if t.state.name == "PRUNED"]
    whole = [t for t in made.study.trials if t.state.name == "COMPLETE"]
    assert len(pruned) > 3 and len(whole) >= 5
    assert max(t.params["x"] for t in pruned) < max(t.params["x"] for t in whole)
    said = info(tmp_path / f"study-{pruned[0].number}")
    assert said["state"] == "cancelled" and said["why"].startswith("pruned at its validation 1: val/acc ")


def test_the_same_command_finds_its_study(tmp_path: Path) -> None:
    results, arguments = tmp_path.parent, ["x=interval(0,1)"]
    make_folder(tmp_path / "20260101-000000-aaaa", arguments, 2)
    Study(tmp_path / "20260101-000000-aaaa", Settings(2, 1, "tpe", "none", 1, "m", "min"), Space((), {}))
    assert find_folder(results, tmp_path.name, arguments, None).name == "20260101-000000-aaaa"
    assert find_folder(results, tmp_path.name, ["x=1,2"], None).name != "20260101-000000-aaaa"
    with pytest.raises(ConfigError, match="is a study of another command: x=interval"):
        make_folder(tmp_path / "20260101-000000-aaaa", ["x=1,2"], 2)


def test_options_of_the_sweeper() -> None:
    """engine/tests/bad_inputs/rows/searches.py has those that are refused."""
    assert option_problems(OPTIONS) == []


SEARCH = (
    "-m",
    "hydra/sweeper=optuna",
    "optimizer.lr=tag(log,interval(1e-3,1e-1))",
    "model.hidden=[8],[32]",
    "model=mlp",
)


def test_on_this_machine(train: Train, tmp_path: Path) -> None:
    """Two run at once, and the printed command for the best one trains it again."""
    results = tmp_path / "results"
    words = (
        "hydra.sweeper.n_trials=2",
        "hydra.sweeper.n_jobs=2",
        "trainer.max_epochs=1",
        "monitor.tensorboard=false",
    )
    asked = (*SEARCH, *words, f"paths.results={results}")
    shown = train(*asked, "dry_run=true")
    assert "FloatDistribution(high=0.1, log=True, low=0.001" in shown.stdout and not results.exists(), (
        shown.stderr
    )
    done = train(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^trial  val/acc +optimizer\.lr +model\.hidden\n[01]  +0\.\d+ ", done.stdout, re.M), (
        done.stdout
    )
    [study] = results.glob("digits/*/study.json")
    found = subprocess.run(
        [sys.executable, str(ROOT / "src" / "jobs.py"), "best", study.parent.name, "--results", str(results)],
        capture_output=True,
        text=True,
    )
    again = re.search(r"^Again: \S+ \S+train\.py (.*)$", found.stdout, re.M)
    assert again, found.stdout + found.stderr
    best = results / "digits" / found.stdout.split()[2]
    assert train(*shlex.split(again[1])).returncode == 0
    assert info((results / "latest").resolve())["metrics"] == info(best)["metrics"]


@pytest.mark.new_process
def test_a_trial_on_two_devices_starts_as_a_new_process_too(
    make_run: Callable[..., tuple[Config, RunDir]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like macOS, which does not fork: it finds the engine without PYTHONPATH."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(ForkServers, "get_starter", lambda *_: subprocess.Popen)
    config, run = make_run("model=mlp", "trainer.max_epochs=1", "trainer.devices=2")
    here = LocalTrials(1)
    here._start(run, config)
    process, around = here._processes[run.id]
    with around:
        assert process.wait(120) == 0
    assert run.read_info()["state"] == "completed"
