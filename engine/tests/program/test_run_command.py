"""`python src/run.py` on this machine and by dry run: what it accepts, what it refuses, and what the program gets."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train_anywhere.files import ROOT
from train_anywhere.testing.weights import info

SHOW = """
import json, os, sys
from pathlib import Path
rank = os.environ["RANK"]
Path(os.environ["TRAIN_RUN"], f"seen-{rank}").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
print("from rank", rank)
if "--fails" in sys.argv and rank == "1":
    sys.exit(7)
"""
HEAVY = {"torch", "tensorflow", "lightning", "keras", "numpy"}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def script() -> Iterator[str]:
    """A program of this project that writes down what it got."""
    path = ROOT / "examples" / "programs" / f"show_{os.getpid()}.py"
    path.write_text(SHOW)
    yield str(path.relative_to(ROOT))
    path.unlink()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(*words: str, **options: object) -> "subprocess.CompletedProcess[str]":
        command = [
            sys.executable,
            str(ROOT / "src" / "run.py"),
            f"paths.results={tmp_path / 'results'}",
            *words,
        ]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, **options)  # type: ignore[call-overload, no-any-return]

    return start


def seen(folder: Path, rank: int = 0) -> tuple[list[str], dict[str, str]]:
    words, environ = json.loads((folder / f"seen-{rank}").read_text())
    return words, environ


WORDS = [
    "a b",
    "c=$d",
    "--x=1",
    "${oc.env:HOME}",
    "",
    "it's",
    "new\nline",
    "é",
    "# x",
    "1",
    "null",
    "~",
    "--",
    "-m",
]


def test_arguments_arrive_as_they_are(run: Run, script: str, tmp_path: Path) -> None:
    done = run("--", script, *WORDS)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "results" / "latest").resolve()
    words, environ = seen(folder)
    assert words == WORDS
    assert folder.parent.name == Path(script).stem
    assert info(folder)["state"] == "completed"
    assert environ["TRAIN_PERSISTENT_CHECKPOINTS"] == str(folder / "checkpoints")
    # resumed by the run folder alone, with the same arguments
    (folder / "state").write_text("failed\n")
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    (folder / "seen-0").unlink()
    done = run(f"resume={folder}")
    assert done.returncode == 0, done.stderr
    assert seen(folder)[0] == WORDS


def test_two_ranks_know_each_other(run: Run, script: str, tmp_path: Path) -> None:
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "results" / "latest").resolve()
    both = [seen(folder, rank)[1] for rank in (0, 1)]
    assert [e["RANK"] + e["LOCAL_RANK"] + e["WORLD_SIZE"] for e in both] == ["002", "112"]
    assert both[0]["MASTER_PORT"] == both[1]["MASTER_PORT"]
    tasks = [json.loads(e["TF_CONFIG"]) for e in both]
    assert [t["task"]["index"] for t in tasks] == [0, 1] and len(set(tasks[0]["cluster"]["worker"])) == 2
    assert "[rank 1] from rank 1" in done.stdout and "\nfrom rank 0" in done.stdout
    assert info(folder)["state"] == "completed"


def test_a_rank_that_fails_fails_the_run(run: Run, script: str, tmp_path: Path) -> None:
    done = run("trainer.devices=2", "trainer.accelerator=cpu", "--", script, "--fails")
    assert done.returncode == 7
    assert f"rank 1: {script} ended with exit code 7." in done.stderr and "Traceback" not in done.stderr
    assert info((tmp_path / "results" / "latest").resolve())["state"] == "failed"


def test_the_dry_run_shows_the_job_and_imports_no_framework(run: Run, script: str) -> None:
    environ = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    words = ("cluster=slurm", "trainer.nodes=3", "launch=torchrun", "dry_run=true", "--", script, "a b")
    done = run(*words, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "#SBATCH --nodes=3" in done.stdout and "torch.distributed.run" in done.stdout
    shown = done.stdout.partition("\ncluster  ")[2]
    assert f"\nprogram     {script} 'a b'\n" in shown
    assert not re.search(r"^(batch|framework|strategy)", shown, re.M)
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "hydra" in loaded and not loaded & HEAVY


@pytest.mark.parametrize(
    "words, messages",
    [
        ([], ["no program is named"]),
        (["--"], ["no program is named"]),
        (["--", "nothing.py"], ["'nothing.py' is not a file"]),
        (["--", "python", "x.py"], ["'python' is not a file"]),
        (["--", "/bin/ls"], ["'/bin/ls' is outside of this project"]),
        (["--", "README.md"], ["README.md is neither a Python script (.py) nor executable"]),
        (["cluster=slurm", "--", "tests/template/test_readme.py"], ["is not in the copy of the project that a job runs"]),
        (["-m", "cluster=slurm", "--", "src/train.py"], ["-m is not a flag of src/run.py"]),
        (
            ["optimizer.lr=3", "model=mlp", "clustr=x", "trainer.nodes=x", "--", "nothing.py"],
            ["optimizer.lr, model: a key of a training", "'nothing.py' is", "'clustr' is not a key", "trainer.nodes=x is not"],
        ),
    ],
)  # fmt: skip
def test_refused_with_all_problems_and_nothing_written(
    run: Run, tmp_path: Path, words: list[str], messages: list[str]
) -> None:
    done = run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(message in done.stderr for message in messages), done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= len(messages) + 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("handles", ["SIGUSR1", "SIGTERM", ""])
def test_a_signal_reaches_the_program(tmp_path: Path, handles: str) -> None:
    """It gets the one that it handles; one that handles none ends, and the run can be resumed."""
    path = ROOT / "examples" / "programs" / f"waits_{os.getpid()}.py"
    handler = (
        f"signal.signal(signal.{handles}, lambda *_: (print('saved', flush=True), sys.exit(0)))"
        if handles
        else ""
    )
    path.write_text(f"import signal, sys, time\n{handler}\nprint('ready', flush=True)\ntime.sleep(60)\n")
    try:
        words = [sys.executable, str(ROOT / "src" / "run.py"), f"paths.results={tmp_path}", "--", str(path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        while "ready" not in process.stdout.readline():
            pass
        time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        printed = process.communicate(timeout=30)[0]
        assert process.returncode == 75 and ("saved" in printed) == bool(handles)
        assert info((tmp_path / "latest").resolve())["state"] == "preempted"
    finally:
        path.unlink()


def test_the_program_of_another_user_needs_trust(
    run: Run, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--", script, "a").returncode == 0
    folder = (tmp_path / "results" / "latest").resolve()
    (folder / "state").write_text("failed\n")
    (folder / "run.json").write_text(json.dumps({**info(folder), "state": "failed"}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "someone"))
    done = run(f"resume={folder}")
    assert done.returncode == 2 and "program" in done.stderr and "trust=true" in done.stderr, done.stderr
    assert run(f"resume={folder}", "trust=true").returncode == 0
