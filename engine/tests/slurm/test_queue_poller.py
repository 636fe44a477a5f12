"""Waiting through times without an answer, with a scripted squeue."""

from pathlib import Path

import pytest

from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.submission.submit import wait_for_jobs

DOWN = "echo Unable to contact slurm controller >&2; exit 1"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue that is missing twice, then shows a running array member, then its end."""
    said = [DOWN, DOWN, "echo '7_0|COMPLETED'; echo '7_1|RUNNING'", "echo '7_0|COMPLETED'; echo '7_1|FAILED'"]
    cases = "\n".join(f"{n}) {line};;" for n, line in enumerate(said, 1))
    program = tmp_path / "squeue"
    program.write_text(
        f"#!/bin/sh\necho >>{tmp_path}/asked\ncase $(wc -l <{tmp_path}/asked) in\n{cases}\nesac\n"
    )
    program.chmod(0o755)
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
