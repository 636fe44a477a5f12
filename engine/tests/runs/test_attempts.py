"""The attempts of a run in run.json."""

from pathlib import Path
from typing import Literal

import pytest

from tools.testing.processes import wait_until
from train_anywhere.monitor.report.page import write_report
from train_anywhere.runs import lock
from train_anywhere.runs.attempts import (
    Outcome,
    job_name,
    read_logged_step,
    read_recorded_step,
    record_step,
    recorded_reason,
)
from train_anywhere.runs.facts import lost_steps, resume_summary
from train_anywhere.runs.folder import ATTEMPTS, RunDir, create
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.runs.recorder import RunRecorder

JOB = {"SLURM_JOB_ID": "7", "TRAIN_HOSTS": "node1:2"}


def attempt(run: RunDir, from_step: int, to_step: int, ended_by: str | None) -> None:
    RunRecorder(run).record_start(2, JOB)
    RunRecorder(run).record_first_step(from_step)
    log = CsvLog(run.metrics_csv)
    log.resume(from_step)
    for step in range(from_step + 1, to_step + 1):
        log.write(step, 1, {"train/loss": 1.0})
    if ended_by:
        state: Literal["completed", "preempted"] = "completed" if ended_by == "completed" else "preempted"
        RunRecorder(run).record_end(
            Outcome(state, 1, to_step, {}, None), None if state == ended_by else ended_by
        )


def test_a_run_that_was_never_resumed_has_no_resume_summary(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    attempt(run, 0, 5, "completed")
    assert resume_summary(run, run.read_info(), alive=True) == ""
    assert run.read_info()[ATTEMPTS][0]["ended_by"] == "completed"


def test_who_ended_a_run_early_is_recorded_and_kept(tmp_path: Path) -> None:
    run, line = create(tmp_path, "a"), "Stops ended training after step 5 of 9"
    RunRecorder(run).record_start(1, JOB)
    RunRecorder(run).record_end(Outcome("completed", 1, 5, {}, None, ended_by=line))
    RunRecorder(run).record_start(1, JOB)
    RunRecorder(run).record_end(Outcome("completed", 1, 5, {}, None))
    assert run.read_info()["ended_by"] == line


def test_a_stop_loses_nothing_and_a_kill_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    attempt(run, 0, 5, "USR1")
    attempt(run, 5, 12, None)
    assert resume_summary(run, run.read_info(), alive=True) == "resumed 1 time, 0 steps lost"
    attempt(run, 9, 20, "completed")
    info = run.read_info()
    assert resume_summary(run, info) == "resumed 2 times, 3 steps lost"
    assert [p["ended_by"] for p in info[ATTEMPTS]] == ["USR1", "killed", "completed"]
    assert [p["from_step"] for p in info[ATTEMPTS]] == [0, 5, 9]
    assert info[ATTEMPTS][1]["hosts"] == ["node1"]


def test_another_number_of_nodes_is_said(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    for hosts in ("a:2,b:2,c:2", "a:2,b:2,c:2", "a:2"):
        RunRecorder(run).record_start(6, {"SLURM_JOB_ID": "7", "TRAIN_HOSTS": hosts})
    assert (
        resume_summary(run, run.read_info(), alive=True) == "resumed 2 times, 0 steps lost, on 3, then 1 node"
    )


def test_steps_that_were_not_logged_are_lost_too(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    attempt(run, 0, 5, None)
    record_step(run, 17)
    attempt(run, 3, 4, None)
    assert resume_summary(run, run.read_info(), alive=True) == "resumed 1 time, 14 steps lost"
    # killed before the next heartbeat: the count of the attempt before is not its own
    attempt(run, 4, 6, None)
    assert run.read_info()[ATTEMPTS][1]["step"] == 4


def test_steps_are_lost_as_soon_as_a_run_is_killed(tmp_path: Path) -> None:
    """Nobody has resumed it yet: the newest checkpoint is where it will start."""
    run = create(tmp_path, "a")
    RunRecorder(run).record_start(1, JOB)
    RunRecorder(run).record_first_step(0)
    record_step(run, 17)
    assert (resume_summary(run, run.read_info(), alive=True), lost_steps(run, run.read_info(), True)) == (
        "",
        0,
    )
    assert resume_summary(run, run.read_info()) == "17 steps lost"
    (run.checkpoints / "00000016").mkdir(parents=True)
    assert resume_summary(run, run.read_info()) == "1 step lost"
    RunRecorder(run).record_start(1, JOB)  # requeued, and not training yet
    assert resume_summary(run, run.read_info(), alive=True) == "resumed 1 time, 1 step lost"
    RunRecorder(run).record_first_step(16)
    assert resume_summary(run, run.read_info(), alive=True) == "resumed 1 time, 1 step lost"
    record_step(run, 30)
    assert resume_summary(run, run.read_info()) == "resumed 1 time, 15 steps lost"
    RunRecorder(run).record_end(Outcome("completed", 1, 40, {}, None))
    assert resume_summary(run, run.read_info()) == "resumed 1 time, 1 step lost"


def test_the_report_of_a_killed_run_has_its_end(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    RunRecorder(run).record_start(1, JOB)
    RunRecorder(run).record_first_step(0)
    record_step(run, 17)
    write_report(run, lambda facts: ([], {}), "lost")
    page = (run.path / "report.html").read_text()
    assert "17 steps lost" in page and "<b>lost</b>" in page


def test_the_heartbeat_counts_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    run = create(tmp_path, "a")
    recorder = RunRecorder(run)
    with lock.RunLock(run, recorder):
        assert read_recorded_step(run) == 0
        recorder.steps_done = lambda: 41
        wait_until(lambda: read_recorded_step(run) == 41)
        recorder.steps_done = lambda: 43
    assert read_recorded_step(run) == 43


def test_the_last_logged_step(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    assert read_logged_step(run) == 0
    run.metrics_csv.write_text("step,epoch\n3,1\n7,1\n1")
    assert read_logged_step(run) == 7


def test_each_attempt_says_where_it_ran_and_why_it_ended(tmp_path: Path) -> None:
    run = create(tmp_path, "a")
    run.jobs.write_text("7\n")
    attempt(run, 0, 5, None)
    RunRecorder(run).record_start(2, {"PBS_JOBID": "8.server"})
    RunRecorder(run).record_failure("an error")
    info = run.read_info()
    assert (info["state"], info["restarts"], info["job_ids"]) == ("failed", 1, ["7", "8.server"])
    assert [(p["job"], p["ended_by"]) for p in info[ATTEMPTS]] == [("7", "killed"), ("8.server", "failed")]
    assert recorded_reason(info) == info[ATTEMPTS][1]["reason"] == "an error"
    RunRecorder(run).record_start(2, {"PBS_JOBID": "9.server"})
    info = run.read_info()
    assert recorded_reason(info) == "" and info[ATTEMPTS][1]["reason"] == "an error"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        ({"TRAIN_JOB": "24_1", "SLURM_ARRAY_JOB_ID": "24", "SLURM_ARRAY_TASK_ID": "1"}, None),
        ({"SLURM_JOB_ID": "24"}, "24"),
        ({"SLURM_JOB_ID": "24", "SLURM_ARRAY_JOB_ID": "24", "SLURM_ARRAY_TASK_ID": "0"}, "24_0"),
        ({"SLURM_JOB_ID": "25", "TRAIN_JOB": "24_1"}, "24_1"),
        ({"PBS_JOBID": "7[3].server"}, "7[3].server"),
    ],
)
def test_a_member_of_an_array_has_a_name_of_its_own(environ: dict[str, str], name: str | None) -> None:
    assert job_name(environ) == name
