"""The verbs, with a scheduler whose words are in files: what a real one says is tested in tests/slurm."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from src import jobs
from src.trust import remember_script

Make = Callable[..., Path]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that squeue prints; scancel and sbatch write down their words in `asked`; there is no sacct."""
    folder = tmp_path / "bin"
    folder.mkdir()
    said = tmp_path / "squeue"
    said.write_text("")
    programs = {
        "squeue": f"cat {said}",
        "scancel": f'echo scancel "$@" >>{tmp_path}/asked',
        "sbatch": f'echo sbatch "$@" >>{tmp_path}/asked; echo 9',
    }
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for missing in ("sacct", "scontrol"):
        (folder / missing).write_text("#!/bin/sh\nexit 1\n")
        (folder / missing).chmod(0o755)
    return said


@pytest.fixture
def make(results: Path) -> Make:
    """`make("20260101-000000-aaaa", "7", state="queued")`: the folder of a submitted run."""

    def run(run_id: str, *job_ids: str, script: bool = True, **info: object) -> Path:
        folder = results / "digits" / run_id
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
        (folder / "run.json").write_text(json.dumps({"cluster": "slurm", **info}))
        (folder / "jobs.txt").write_text("".join(f"{i}\n" for i in job_ids))
        if script:
            (folder / "job.sbatch").write_text("#!/bin/sh\n")
            remember_script(folder / "job.sbatch")
        (results / "latest").unlink(missing_ok=True)
        (results / "latest").symlink_to(folder)
        return folder

    return run


def run(results: Path, *words: str) -> int:
    return jobs.main([*words, "--results", str(results)])


@pytest.mark.parametrize("name", [None, "20260101-000000-aaaa", "7", "FOLDER"])
def test_a_run_is_found_by_what_is_at_hand(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    make("20250101-000000-bbbb", "77", state="completed")
    folder = make(
        "20260101-000000-aaaa",
        "7",
        state="completed",
        epoch=3,
        step=42,
        metrics={"test/acc": 0.5},
        restarts=2,
    )
    assert run(results, "status", *([] if name is None else [name.replace("FOLDER", str(folder))])) == 0
    said = capsys.readouterr().out
    assert said.startswith("20260101-000000-aaaa  completed  job 7 on slurm  epoch 3, step 42")
    assert "test/acc 0.5000" in said


def test_an_unknown_run(results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("20260101-000000-aaaa", "7")
    assert run(results, "status", "nothing") == 2
    assert "no run is called 'nothing'" in capsys.readouterr().err


def test_a_run_that_ran_here(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", script=False)
    assert run(results, "status") == 2
    assert "ran on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("queue", "state", "expected"),
    [
        ("7|PENDING\n", "queued", "pending"),
        ("7|RUNNING\n", "queued", "running"),
        ("7|COMPLETED\n", "completed", "completed"),
        ("7|FAILED\n", "failed", "failed"),
        ("7|TIMEOUT\n", "running", "timeout"),
        ("7|NODE_FAIL\n", "running", "node_fail"),
        ("", "running", "lost"),
        ("", "preempted", "preempted"),
        ("7|PENDING\n", "preempted", "pending"),
    ],
)
def test_the_scheduler_knows_the_living_and_run_json_the_ended(
    results: Path,
    squeue: Path,
    make: Make,
    capsys: pytest.CaptureFixture[str],
    queue: str,
    state: str,
    expected: str,
) -> None:
    make("20260101-000000-aaaa", "7", state=state)
    squeue.write_text(queue)
    run(results, "status")
    assert capsys.readouterr().out.split()[1] == expected


def sweep(results: Path, make: Make, states: list[str]) -> str:
    base = results / "digits" / "20260101-000000-aaaa"
    base.mkdir(parents=True)
    (base / "job.sbatch").write_text("#!/bin/sh\n")
    remember_script(base / "job.sbatch")
    for member, state in enumerate(states):
        make(f"{base.name}-{member}", f"7_{member}", script=False, state=state)
    return base.name


def test_failed_members_are_submitted_again_alone(
    results: Path, squeue: Path, make: Make, tmp_path: Path
) -> None:
    name = sweep(results, make, ["completed", "failed", "cancelled", "running", "failed"])
    squeue.write_text("7_3|RUNNING\n")
    assert run(results, "resubmit", name, "--failed") == 0
    script = results / "digits" / name / "job.sbatch"
    assert (tmp_path / "asked").read_text() == f"sbatch --parsable --array=1,4 {script}\n"
    assert (results / "digits" / f"{name}-4" / "jobs.txt").read_text() == "7_4\n9_4\n"
    assert json.loads((results / "digits" / f"{name}-1" / "run.json").read_text())["state"] == "queued"


def test_one_member_or_all_that_are_not_done(results: Path, squeue: Path, make: Make, tmp_path: Path) -> None:
    name = sweep(results, make, ["completed", "failed", "cancelled"])
    run(results, "resubmit", f"{name}-1")
    run(results, "resubmit", name)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[2] for line in asked] == ["--array=1", "--array=1-2"]


def test_a_running_or_complete_run_is_not_submitted_again(
    results: Path, squeue: Path, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", "7", state="running")
    squeue.write_text("7|RUNNING\n")
    assert run(results, "resubmit") == 2
    assert "20260101-000000-aaaa is running" in capsys.readouterr().err
    make("20260102-000000-aaaa", "8", state="completed")
    assert run(results, "resubmit") == 2
    assert not (tmp_path / "asked").exists()


def test_cancel_takes_every_living_job_of_a_chain(
    results: Path, squeue: Path, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", "8", "9", state="queued")
    squeue.write_text("7|COMPLETED\n8|RUNNING\n9|PENDING\n")
    assert run(results, "cancel") == 0
    assert (tmp_path / "asked").read_text() == "scancel 8 9\n"
    assert json.loads((folder / "run.json").read_text())["state"] == "cancelled"


def test_logs_are_those_of_the_newest_job(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make("20260101-000000-aaaa", "7", "8", state="running")
    (folder / "slurm-7.out").write_text("old\n")
    (folder / "slurm-8.out").write_text("new\n")
    (folder / "slurm-8.err").write_text("")
    assert run(results, "logs") == 0
    said = capsys.readouterr().out
    assert "new\n" in said and "old" not in said


def test_logs_of_a_job_that_has_not_started(
    results: Path, squeue: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("20260101-000000-aaaa", "7", state="queued")
    assert run(results, "logs") == 2
    assert "no log yet" in capsys.readouterr().err
