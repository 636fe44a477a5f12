"""Answers of a real Slurm, and of PBS' manual through a scripted qstat."""

import os
from pathlib import Path

import pytest

from engine.tests.slurm.scripts import tool
from tools.testbed.testbed_cluster import Testbed
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.client import submit_script
from train_anywhere.slurm.submission.submit import wait_for_jobs


@pytest.mark.slurm
@pytest.mark.needs_root
def test_a_real_slurm_is_understood(
    testbed: Testbed, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", testbed.env()["PATH"])
    script = shared_dir / "a | job.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --hold --output=/dev/null\nsleep 100\n")
    array, alone = submit_script("slurm", script, members="0-1"), submit_script("slurm", script)
    members = {f"{array}_0": "PENDING", f"{array}_1": "PENDING"}
    assert queue.query_queue("slurm", [array, "99999"]) == queue.JobStates(members)
    assert queue.query_states("slurm", [f"{array}_1"]).select([f"{array}_1"]) == {f"{array}_1": "PENDING"}
    assert queue.find_jobs()[os.path.realpath(script)] == {**members, alone: "PENDING"}
    assert queue.cancel("slurm", [array, alone], patience=20) == {}
    assert queue.query_states("slurm", [alone]).states == {alone: "CANCELLED"}
    assert queue.query_queue("slurm", [array, alone]).active([array, alone]) == {}
    # no job, and no accounting: both are answers
    assert queue.query_states("slurm", ["99999"]) == queue.JobStates()
    with pytest.raises(SchedulerError, match=r"squeue failed with exit code 1: .*Invalid job id"):
        queue.query_queue("slurm", ["abc"])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo '    job_state = R'", {"7[3].server": "RUNNING"}),
        ("echo '    job_state = F'", {"7[3].server": "COMPLETED"}),
        (
            r"printf 'Job Id:\t7\n\tJob_Name = a\n\tjob_state = Q\n'",
            {"7[3].server": "PENDING"},
        ),  # Debian's qstat for Slurm
        ("echo 'qstat: Unknown Job Id 7.server' >&2; exit 153", {}),
        ("echo 'qstat: 7.server Job has finished, use -x or -H' >&2; exit 35", {}),
        ("echo 'Connection refused' >&2; exit 111", "qstat failed with exit code 111: Connection refused."),
        ("echo nonsense", "qstat answered 'nonsense', which has no job_state in it."),
    ],
)
def test_what_pbs_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: dict[str, str] | str
) -> None:
    tool(tmp_path / "qstat", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    try:
        said: dict[str, str] | str = queue.query_states("pbs", ["7[3].server"]).states
    except SchedulerError as error:
        said = str(error)
    assert said == expected


def test_a_state_that_nobody_knows_may_still_run() -> None:
    known = queue.JobStates({"7_0": "A_STATE_OF_SLURM_99", "7_1": "TIMEOUT", "70": "RUNNING"})
    assert known.active(["7"]) == {"7_0": "A_STATE_OF_SLURM_99"}
    assert known.missing(["7", "7_1", "7_2", "8"]) == ["7_2", "8"]


DOWN = "echo Unable to contact slurm controller >&2; exit 1"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue that is missing twice, then shows a running array member, then its end."""
    said = [DOWN, DOWN, "echo '7_0|COMPLETED'; echo '7_1|RUNNING'", "echo '7_0|COMPLETED'; echo '7_1|FAILED'"]
    cases = "\n".join(f"{n}) {line};;" for n, line in enumerate(said, 1))
    program = tmp_path / "squeue"
    tool(program, f"echo >>{tmp_path}/asked\ncase $(wc -l <{tmp_path}/asked) in\n{cases}\nesac")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


def test_a_scheduler_that_does_not_answer_is_asked_again(
    squeue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_for_jobs("slurm", ["7"], poll=0.01)
    assert len(squeue.with_name("asked").read_text()) == 4
    assert capsys.readouterr().err == (
        "squeue failed with exit code 1: Unable to contact slurm controller. The job continues; asking again ...\n"
        "The scheduler answers again.\n"
    )


def test_waiting_has_an_end(squeue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_SILENCE_S", 0.0)
    with pytest.raises(SchedulerError, match="the job may still run, but this command stops waiting for it"):
        wait_for_jobs("slurm", ["7"], poll=0.01)
