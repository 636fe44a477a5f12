"""The verbs that change jobs: cancel, resubmit, and what they refuse. Clients of the scheduler fail in every way."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import train_anywhere.distributed.programs
import train_anywhere.slurm.scheduler.queue
from engine.tests.commands.conftest import Verbs, state
from train_anywhere.files import ENGINE


def test_a_run_that_runs_here_has_its_process(verbs: Verbs) -> None:
    """`cancel` asks that process to save and stop."""
    folder = verbs.make(script=False, state="running")
    code = "import sys, time; from pathlib import Path; from train_anywhere.runs.folder import RunDir\n"
    code += "from train_anywhere.runs.lock import RunLock\n"
    code += "with RunLock(RunDir(Path(sys.argv[1]))): print(flush=True); time.sleep(60)"
    command, env = [sys.executable, "-c", code, str(folder)], {**os.environ, "PYTHONPATH": str(ENGINE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout and process.stdout.readline() == b"\n"
        shown, _ = verbs.run("status")
        assert (
            f"running  process {process.pid} on " in shown and "jobs.py cancel 20260101-000000-aaaa" in shown
        )
        assert f"process {process.pid} saves a checkpoint and stops" in verbs.run("cancel")[0]
        assert process.wait(30) == -signal.SIGTERM
    assert "aaaa  lost  on this machine" in verbs.run("status")[0]
    assert "ran on this machine and is lost: there is nothing to cancel." in verbs.refused("cancel")
    verbs.make("20260101-000000-bbbb", script=False, state="queued")
    assert "bbbb is starting on this machine: try again in a moment." in verbs.refused("cancel")


def test_failed_members_are_submitted_again_alone(verbs: Verbs) -> None:
    name = verbs.sweep("completed", "failed", "cancelled", "running", "failed")
    verbs.queue.write_text("7_3|RUNNING\n")
    verbs.run("resubmit", name, "--failed")
    runs = verbs.results / "digits"
    assert verbs.asked.read_text() == f"sbatch --parsable --array=1,4 {runs / name / 'job.sbatch'}\n"
    assert (runs / f"{name}-4" / "jobs.txt").read_text() == "7_4\n9_4\n"
    assert state(runs / f"{name}-1") == "queued"


def test_one_member_or_all_that_are_not_done(verbs: Verbs) -> None:
    name = verbs.sweep("completed", "failed", "cancelled")
    verbs.run("resubmit", f"{name}-1")
    verbs.run("resubmit", name)
    assert [line.split()[2] for line in verbs.asked.read_text().splitlines()] == ["--array=1", "--array=1-2"]


def test_a_running_or_complete_run_is_not_submitted_again(verbs: Verbs) -> None:
    verbs.make("20260101-000000-aaaa", "7", state="running")
    verbs.queue.write_text("7|RUNNING\n")
    assert "20260101-000000-aaaa is running" in verbs.refused("resubmit")
    verbs.make("20260102-000000-aaaa", "8", state="completed")
    verbs.refused("resubmit")
    assert not verbs.asked.exists()


def test_cancel_takes_every_living_job_of_a_chain(verbs: Verbs) -> None:
    folder = verbs.make("20260101-000000-aaaa", "7", "8", "9", state="queued")
    verbs.queue.write_text("7|COMPLETED\n8|RUNNING\n9|PENDING\n")
    verbs.run("cancel")
    assert verbs.asked.read_text() == "scancel 8 9\n" and state(folder) == "cancelled"


DOWN = "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1"
BROKEN = {
    "fails": (DOWN, "squeue failed with exit code 1: slurm_load_jobs error: Unable to contact slurm controller."),
    "prints bytes": (r"printf '\377\376\n'", "squeue answered '\\ufffd\\ufffd', which is not a job and its state."),
    "is killed": ("kill -9 $$", "squeue failed with signal 9."),
    "hangs": ("sleep 60 & sleep 60", "squeue did not answer within 0.5 s and was killed."),
}  # fmt: skip
"""Fault injection: the script of a client of Slurm, and the message."""
VERBS = {"status": "", "cancel": "Nothing was cancelled.", "resubmit": "Nothing was submitted."}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("verb", VERBS)
def test_a_queue_that_can_not_be_asked_is_not_an_empty_one(verbs, monkeypatch, fault, verb):
    folder = verbs.make("20260101-000000-aaaa", "7", state="running")
    before = (folder / "run.json").read_bytes()
    script, sentence = BROKEN[fault]
    verbs.client("squeue", script)
    if fault == "hangs":
        monkeypatch.setattr(train_anywhere.distributed.programs, "QUERY_TIMEOUT_S", 0.5)
    out, err = verbs.run(verb, code=2)
    assert sentence in err and VERBS[verb] in err
    expected = ["20260101-000000-aaaa  run.json says running  job 7 on slurm"] if verb == "status" else []
    assert out.splitlines()[:1] == expected
    assert (folder / "run.json").read_bytes() == before and not verbs.asked.exists()


def test_an_accounting_that_can_not_be_asked_leaves_the_end_unknown(verbs: Verbs) -> None:
    verbs.make("20260101-000000-aaaa", "7", state="running", step=3, epoch=0)
    verbs.client("sacct", "echo Connection refused >&2; exit 1")
    out, err = verbs.run("status")
    assert "20260101-000000-aaaa  unknown  run.json says running  job 7 on slurm  epoch 0, step 3" in out
    assert "left the queue is not known: sacct failed with exit code 1: Connection refused." in err
    said = verbs.refused("resubmit", "--failed")
    assert "nothing to submit again: 20260101-000000-aaaa is unknown. sacct failed" in said


@pytest.mark.parametrize(
    ("scancel", "sentence"),
    [
        ("echo Access/permission denied >&2; exit 210", "scancel failed with exit code 210: Access/permission denied; job 7 is pending."),
        ("true", "scancel was called, but job 7 is pending."),
        ("sleep 60", "scancel did not answer within 3 s and was killed."),
        # the controller goes away between two questions
        ("echo gone >{}", "scancel was called, and the result is not known: squeue answered 'gone'"),
    ],
)  # fmt: skip
def test_a_job_is_cancelled_only_when_the_queue_says_so(verbs, monkeypatch, scancel, sentence):
    folder = verbs.make("20260101-000000-aaaa", "7", state="queued")
    verbs.queue.write_text("7|PENDING\n")
    verbs.client("scancel", scancel.format(verbs.queue))
    monkeypatch.setattr(
        train_anywhere.distributed.programs, "QUERY_TIMEOUT_S", 3.0 if "sleep" in scancel else 60.0
    )
    monkeypatch.setattr(train_anywhere.slurm.scheduler.queue, "CANCEL_TIMEOUT_S", 0.2)
    out, err = verbs.run("cancel", code=2)
    assert sentence in err and out == "" and state(folder) == "queued"


def test_of_several_runs_each_is_told(verbs: Verbs) -> None:
    name = verbs.sweep("queued", "queued", "completed")
    (verbs.results / "digits" / f"{name}-1" / "jobs.txt").write_text("seven\n")
    verbs.queue.write_text("7_0|PENDING\n7_1|PENDING\n")
    out, err = verbs.run("cancel", name, code=2)
    assert out.splitlines() == [f"{name}-0: cancelled job 7_0.", f"{name}-2 has no queued or running job."]
    assert "has 'seven' in it, which is not a job id: correct or delete that line." in err


def test_a_renamed_run_folder(verbs: Verbs) -> None:
    folder = verbs.make("20260101-000000-aaaa", "7", state="failed")
    (folder / "job.sbatch").write_text(f"#!/bin/sh\nRUN={folder}\n")
    gold = folder.rename(folder.with_name("gold"))
    for name in ("gold", str(gold)):
        assert "gold  failed  job 7 on slurm" in verbs.run("status", name)[0]
    said = verbs.refused("resubmit", "gold")
    assert f"was moved: its batch script still trains in {folder}; resume it with `" in said


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        (lambda f: (f / "jobs.txt").write_bytes(b"\xff\xfe\n"), "which is not a job id: correct or delete that line."),
        (lambda f: (f / "job.sbatch").unlink(), "which scheduler has them is not known."),
        (lambda f: [(f / "jobs.txt").unlink(), (f / "jobs.txt").mkdir()], "jobs.txt can't be read: Is a directory."),
    ],
)  # fmt: skip
def test_odd_run_folders(verbs: Verbs, odd: Callable[[Path], object], sentence: str) -> None:
    folder = verbs.make("20260101-000000-aaaa", "7", state="failed")
    odd(folder)
    for words in (["status"], ["logs"], ["cancel"], ["resubmit"], ["logs", "-f"]):
        assert sentence in verbs.refused(*words, str(folder))


def refused_name(verbs: Verbs, verb: str, name: str) -> str:
    return verbs.refused(verb, name, *(["--yes"] if verb == "prune" else []))


@pytest.mark.parametrize("verb", ["status", "cancel", "prune", "save", "resubmit"])
def test_a_dot_is_the_current_folder_and_not_the_newest_run(verbs, verb, monkeypatch):
    folder = verbs.make(state="completed", script=False)
    monkeypatch.chdir(verbs.results)
    for name in (".", "./", "..", "code", "digits"):
        assert "no run is called" in refused_name(verbs, verb, name)
    assert folder.is_dir()


def test_a_name_of_several_runs_is_refused(verbs: Verbs) -> None:
    """A job that a copied folder lists too, and an id below two names."""
    first = verbs.make("20260101-000000-aaaa", "7", state="completed")
    shutil.copytree(first, first.with_name("copy"))
    shutil.copytree(first, verbs.results / "other" / first.name)
    for name in ("7", first.name):
        said = refused_name(verbs, "prune", name)
        assert f"{name} names" in said and "give one of these folders" in said
    latest = verbs.results / "other" / "latest"
    shutil.copytree(first, latest)
    assert "latest names 2 runs" in refused_name(verbs, "prune", "latest")
    assert first.is_dir() and latest.is_dir()


def test_an_unreachable_scheduler_in_json(verbs: Verbs) -> None:
    verbs.make("20260101-000000-aaaa", "7", state="running")
    verbs.client("squeue", DOWN)
    told = verbs.json("status", code=2)
    assert (told["runs"][0]["state"], told["runs"][0]["written"]) == ("", "running")
    assert "the states of jobs are not known" in told["trouble"][0]
