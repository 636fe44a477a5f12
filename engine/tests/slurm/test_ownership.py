"""`jobs.py cancel` on a real Slurm: another user's run folder can't name this user's jobs."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tools.testbed.testbed_cluster import Testbed
from train_anywhere.commands import jobs
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.trust import record
from train_anywhere.slurm.scheduler.client import submit_script

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

SCRIPT = "#!/bin/bash\n#SBATCH --hold --output=/dev/null\nsleep 100\n"


@pytest.fixture
def queue(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Testbed:
    """The clients of a real Slurm are those of this process."""
    monkeypatch.setenv("PATH", testbed.env()["PATH"])
    return testbed


def make(folder: Path, script: bool = True) -> RunDir:
    """A run folder that was submitted."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("cluster: {scheduler: slurm}\n")
    (folder / "run.json").write_text(json.dumps({"format": 2, "cluster": "slurm", "state": "queued"}))
    if script:
        (folder / "job.sbatch").write_text(SCRIPT)
    return RunDir(folder)


def submitted(run: RunDir, **options: str) -> str:
    """Submit the script of a run and return the job's id."""
    job = submit_script("slurm", run.path / "job.sbatch", **options)
    run.jobs.write_text(f"{job}\n")
    return job


@pytest.mark.usefixtures("queue")
def test_a_run_s_own_job_is_cancelled(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(shared_dir / "disk" / "digits" / "run")
    (shared_dir / "results").symlink_to(shared_dir / "disk")
    job = submitted(RunDir(shared_dir / "results" / "digits" / "run"))
    assert jobs.main(["cancel", str(run.path)]) == 0
    assert capsys.readouterr().out == f"run: cancelled job {job}.\n"


@pytest.mark.usefixtures("queue")
def test_a_member_of_a_sweep_is_cancelled_by_the_script_that_all_share(
    shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make(shared_dir / "digits" / "sweep")
    (base.path / "config.yaml").unlink()
    job = submitted(base, members="0-1")
    members = [make(shared_dir / "digits" / f"sweep-{n}", script=False) for n in (0, 1)]
    for number, member in enumerate(members):
        member.jobs.write_text(f"{job}_{number}\n")
    assert jobs.main(["cancel", str(members[1].path)]) == 0
    assert capsys.readouterr().out == f"sweep-1: cancelled job {job}_1.\n"
    assert jobs.main(["cancel", str(members[0].path)]) == 0


def test_a_job_from_elsewhere_is_not_cancelled(
    queue: Testbed, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, foreign = make(shared_dir / "mine" / "run"), make(shared_dir / "theirs" / "sweep-1")
    (shared_dir / "theirs" / "sweep").symlink_to(mine.path)  # leads to the script of the job
    job = submitted(mine)
    foreign.jobs.write_text(f"{job}\n")
    assert jobs.main(["cancel", str(foreign.path)]) == 2
    assert capsys.readouterr().err == (
        f"error: sweep-1: job {job} in {foreign.jobs} was not submitted from that folder but as '{mine.path}/job.sbatch', so nothing "
        f"was cancelled; if you mean that job, use `scancel {job}`.\n"
    )
    assert queue.job_states(job) == ["PENDING"]
    assert foreign.read_info()["state"] == "queued"
    assert jobs.main(["cancel", str(mine.path)]) == 0


def test_a_job_without_a_script_is_cancelled_only_if_this_user_runs_it_in_its_allocation(
    queue: Testbed, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(shared_dir / "results" / "run")
    said = subprocess.run(
        ["sbatch", "--hold", "--wrap=sleep 100"], capture_output=True, text=True, check=True, cwd=shared_dir
    )
    job = re.findall(r"\d+", said.stdout)[0]
    run.jobs.write_text(f"{job}\n")
    assert jobs.main(["cancel", str(run.path)]) == 2
    assert f"use `scancel {job}`" in capsys.readouterr().err
    assert queue.job_states(job) == ["PENDING"]
    record(run.path, "job", job)
    assert jobs.main(["cancel", str(run.path)]) == 0
