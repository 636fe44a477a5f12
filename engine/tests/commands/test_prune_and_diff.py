"""`jobs.py prune` deletes only what it may, and `jobs.py diff` names what differs."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from engine.tests.confined import confined, works
from engine.tests.killed import run_killed
from train_anywhere.commands import jobs
from train_anywhere.commands.jobs import main
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.monitor.report.compare_runs import compare_runs
from train_anywhere.runs.folder import RunDir, claim_sweep, create
from train_anywhere.runs.lock import RunLock

Train = Callable[..., "CompletedProcess[str]"]
SHORT = ("trainer.max_steps=2", "monitor.report=false", "monitor.sample_seconds=null")


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with two completed runs of different learning rates, which tests copy."""
    results = tmp_path_factory.mktemp("prune") / "results"
    for rate in ("0.01", "0.02"):
        done = train(*SHORT, f"optimizer.lr={rate}", f"paths.results={results}")
        assert done.returncode == 0, done.stderr
    return results


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> list[RunDir]:
    """Return copies of the two runs in `tmp_path / "results"`."""
    shutil.copytree(trained, tmp_path / "results", symlinks=True)
    copied = [RunDir(path) for path in (tmp_path / "results/digits").iterdir()]
    return sorted(copied, key=lambda run: run.overrides.read_text())  # both may be of one second


def prune(scratch: Path, *words: str) -> "CompletedProcess[str]":
    if not works(scratch):
        pytest.skip("needs root: `prune` runs where only its folder can be written")
    command = [
        sys.executable,
        str(ROOT / "src/jobs.py"),
        "prune",
        "--results",
        str(scratch / "results"),
        *words,
    ]
    return confined(scratch, command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


def test_it_asks_and_names_what_it_needs(runs: list[RunDir], tmp_path: Path) -> None:
    done = prune(tmp_path)
    assert done.returncode == 2 and "name runs, or select them: --state failed" in done.stderr
    done = prune(tmp_path, "--state", "completed")
    assert done.returncode == 2 and "this is not a terminal: add --yes" in done.stderr
    done = prune(tmp_path, "--state", "failed", "--yes")
    assert done.returncode == 2 and "no run is selected" in done.stderr
    assert all(run.path.is_dir() for run in runs)


def test_it_deletes_what_is_selected_and_nothing_else(runs: list[RunDir], tmp_path: Path) -> None:
    (tmp_path / "results/digits/notes.txt").write_text("mine")
    done = prune(tmp_path, runs[0].id, "--yes")
    assert done.returncode == 0 and "Deleted 1 of 1." in done.stdout, done.stderr
    assert not runs[0].path.exists() and runs[1].path.is_dir()
    assert (tmp_path / "results/digits/notes.txt").read_text() == "mine"


def test_a_run_that_trains_is_kept(runs: list[RunDir], tmp_path: Path) -> None:
    with RunLock(runs[1]):
        done = prune(tmp_path, "--name", "dig*", "--yes")
    assert f"kept: {runs[1].id}" in done.stderr and runs[1].path.is_dir()
    assert not runs[0].path.exists()


def test_a_folder_that_no_run_of_ours_made_is_kept(runs: list[RunDir], tmp_path: Path) -> None:
    (runs[0].path / ".run-marker").unlink()
    done = prune(tmp_path, runs[0].id, "--yes")
    assert (
        done.returncode == 1 and "Deleted 0 of 1." in done.stdout and (runs[0].path / "config.yaml").exists()
    )


def test_a_run_whose_job_waits_is_kept(runs: list[RunDir], tmp_path: Path) -> None:
    runs[0].update(state="queued")
    (runs[0].path / "jobs.txt").write_text("7\n")
    done = prune(tmp_path, runs[0].id, "--yes")  # no scheduler answers here
    assert done.returncode == 2 and f"kept: {runs[0].id}" in done.stderr and runs[0].path.is_dir()


def test_diff(runs: list[RunDir], capsys: pytest.CaptureFixture[str]) -> None:
    runs[1].update(commit="f" * 40, versions={"python": "3.99"})
    assert main(["diff", str(runs[0].path), str(runs[1].path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == [runs[0].id, runs[1].id]
    assert ["optimizer.lr", "0.01", "0.02"] in lines
    assert any(line[0] == "commit" and "f" * 12 in line for line in lines)
    assert any(line[0] == "python" and line[-1] == "3.99" for line in lines)
    assert any(line[0] == "train/loss" for line in lines)
    assert not any(line[0].startswith(("paths.", "trainer.")) for line in lines)


def test_a_run_does_not_differ_from_itself(runs: list[RunDir], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(runs[0].path), str(runs[0].path)]) == 0
    out = capsys.readouterr().out
    for section in ("Configuration", "Code", "Environment", "Results"):
        assert f"{section}: no difference" in out


def completed(results: Path, run_id: str) -> RunDir:
    run = create(results, "digits", run_id)
    run.config.touch()
    run.update(state="completed", started="2026-01-01T00:00:00+00:00")
    return run


def test_a_sweep_is_deleted_with_its_folder(tmp_path: Path) -> None:
    sweep = "20260101-000000-aaaa"
    members = [completed(tmp_path / "results", f"{sweep}-{n}") for n in range(2)]
    claim_sweep(members[0])
    folder = members[0].path.with_name(sweep)
    done = prune(tmp_path, members[0].id, members[0].id, "--yes")
    assert "Deleted 1 of 1." in done.stdout and folder.is_dir(), done.stderr
    done = prune(tmp_path, sweep, "--yes")
    assert "Deleted 1 of 1." in done.stdout and not folder.exists(), done.stderr


def test_a_search_keeps_its_results(tmp_path: Path) -> None:
    trial = completed(tmp_path / "results", "mine-0")
    claim_sweep(trial)
    (trial.path.with_name("mine") / "study.json").touch()
    assert "Deleted 1 of 1." in prune(tmp_path, trial.id, "--yes").stdout
    assert (trial.path.with_name("mine") / "study.json").exists()


def test_latest_is_the_newest_run_that_is_left(tmp_path: Path) -> None:
    runs = [completed(tmp_path / "results", f"2026010{n}-000000-aaaa") for n in (1, 2)]
    done = prune(tmp_path, str(tmp_path / "results/latest"), "--yes")
    assert not runs[1].path.exists(), done.stderr
    assert (tmp_path / "results/latest").resolve() == runs[0].path
    prune(tmp_path, runs[0].id, "--yes")
    assert not (tmp_path / "results/latest").is_symlink()


def test_a_link_to_a_run_is_not_followed(tmp_path: Path) -> None:
    run = completed(tmp_path / "results", "20260101-000000-aaaa")
    link = run.path.with_name("link")
    link.symlink_to(run.path)
    done = prune(tmp_path, "--name", "digits", "--yes")
    assert "is a symbolic link" in done.stderr and link.is_symlink()


def test_without_room_for_its_folder_a_sweep_trains(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    claim_sweep(RunDir(tmp_path / "a-0"))


def test_diff_fits_the_terminal(runs: list[RunDir]) -> None:
    """A long value has its own line, and the others stay in columns."""
    for run, name in zip(runs, "ab", strict=True):
        run.update(device=f"{name * 60} GPU", hosts=[name])
    lines = compare_runs(*runs, width=80)
    assert f"  device\n      {'a' * 60} GPU\n      {'b' * 60} GPU" in lines
    assert max(len(part) for line in lines for part in line.split("\n")) <= 80
    assert any(line.split() == ["optimizer.lr", "0.01", "0.02"] for line in lines)


def make(results: Path, run_id: str) -> RunDir:
    run = create(results, "digits", run_id)
    run.config.touch()
    for name in ("checkpoints/00000001/model", "tensorboard/events", "report.html"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("x")
    run.update(state="completed", started="2026-01-01T00:00:00+00:00")
    return run


def ask(results: Path, *words: str) -> tuple[int, str]:
    with io.StringIO() as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        return jobs.main([*words, "--results", str(results)]), text.getvalue()


def kill_each(folder: Path) -> None:
    """Kill, look and prune again. Print the number of kills that left a whole run or none."""
    results, at, found = folder / "results", 0, {"whole": 0, "hidden": 0}
    while True:
        at += 1
        shutil.rmtree(results, ignore_errors=True)
        first, kept = make(results, "20260101-000000-aaaa"), make(results, "20260101-000001-bbbb")
        files = sorted(str(p) for p in first.path.rglob("*"))
        words = ["prune", first.id, "--yes", "--results", str(results)]
        if not run_killed(lambda words=words: jobs.main(words), results, at)[0]:
            break
        code, listed = ask(results, "list")
        assert code == 0 and kept.id in listed and (first.id in listed) == first.path.exists(), listed
        found["whole" if first.path.exists() else "hidden"] += 1
        if first.path.exists():
            assert sorted(str(p) for p in first.path.rglob("*")) == files
            assert ask(results, "prune", first.id, "--yes")[0] == 0
        else:
            assert "kept: " not in ask(results, "prune", "--until", "20200101", "--yes")[1]
        assert sorted(p.name for p in (results / "digits").iterdir()) == [kept.id]
    print(f"{at - 1} kills: {found}")
    assert found["whole"] and found["hidden"] > 5


def test_a_killed_prune(tmp_path: Path) -> None:
    if not works(tmp_path):
        pytest.skip("needs root: `prune` runs where only its folder can be written")
    code = f"from engine.tests.commands.test_prune_and_diff import kill_each, Path; kill_each(Path({str(tmp_path)!r}))"
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TRAIN_ROOT": str(ROOT)}
    environ["PYTHONPATH"] = f"{ROOT}:{ENGINE}"
    done: subprocess.CompletedProcess[str] = confined(tmp_path, [sys.executable, "-c", code], env=environ)
    assert done.returncode == 0 and "kills: " in done.stdout, done.stdout + done.stderr
    print(done.stdout)
