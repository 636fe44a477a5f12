"""Submissions that the scheduler refuses, loses or leaves half done, with scripted clients."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from engine.tests.slurm.fakes import Fakes
from tools.testing.processes import start_python, wait_until
from train_anywhere.distributed import programs
from train_anywhere.errors import ProjectError, SubmitError, UnclearError
from train_anywhere.runs.reopen.trust import refuse_foreign_script
from train_anywhere.slurm.scheduler.client import submit_script

DOWN = "echo Unable to contact slurm controller >&2; exit 1"


def refused(fakes: Fakes, kind: type[ProjectError], *words: str) -> str:
    with pytest.raises(kind) as caught:
        fakes.submit(*words)
    return str(caught.value)


def test_a_chain_that_breaks_is_taken_back_whole(fakes: Fakes) -> None:
    fakes.chain("echo sbatch: error: QOSMaxSubmitJobPerUserLimit >&2; exit 1", good=2)
    said = refused(fakes, SubmitError, "cluster.chain=3")
    assert said == (
        "sbatch refused the job: sbatch: error: QOSMaxSubmitJobPerUserLimit. Jobs 4001, 4002, already accepted, "
        "were cancelled: nothing is queued."
    )
    assert fakes.asked("scancel") == ["4002 4001"]
    assert fakes.queue.read_text() == "4001|CANCELLED\n4002|CANCELLED\n"
    assert list(fakes.results.glob("*/*")) == [] and not (fakes.results / "latest").is_symlink()


@pytest.mark.parametrize(
    ("name", "script", "reason"),
    [
        ("scancel", "echo Access denied >&2; exit 210", "scancel failed with exit code 210: Access denied; job 4001 is pending."),
        ("squeue", DOWN, "the result is not known: squeue failed with exit code 1: Unable to contact slurm controller."),
    ],
)  # fmt: skip
def test_a_chain_whose_first_job_stays_queued_keeps_its_folder(
    fakes: Fakes, name: str, script: str, reason: str
) -> None:
    fakes.chain("echo sbatch: error: limit >&2; exit 1")
    fakes(name, script)
    said = refused(fakes, UnclearError, "cluster.chain=3")
    [run] = fakes.runs()
    assert f"{reason} Look at `squeue --me`." in said
    assert said.startswith(
        "sbatch refused the job: sbatch: error: limit. Job 4001, already accepted, could not be cancelled: "
    )
    assert str(run) in said
    assert (run / "jobs.txt").read_text() == "4001\n"
    assert json.loads((run / "run.json").read_text())["state"] == "queued"


LOST = {
    "sleep 60 & sleep 60": "sbatch did not answer within 0.5 s and was killed.",
    r"printf '\377\376\n'": r"sbatch answered '\ufffd\ufffd', which has no job id in it.",
    "true": "sbatch answered '', which has no job id in it.",
    "echo 12ab": "sbatch answered '12ab', which has no job id in it.",
    "kill -9 $$": "sbatch failed with signal 9.",
    "echo Socket timed out on send/recv operation >&2; exit 1": "sbatch failed with exit code 1: Socket timed out on send/recv operation.",
}
"""What sbatch does, and the message."""


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.quick("true", "kill -9 $$")
def test_an_answer_that_is_lost(fakes: Fakes, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    fakes("sbatch", fault)
    monkeypatch.setattr(programs, "SUBMIT_TIMEOUT_S", 0.5)
    script = fakes.folder / "squeue"
    with pytest.raises(UnclearError) as caught:
        submit_script("slurm", script)
    assert str(caught.value) == LOST[fault]


def test_a_lost_answer_keeps_the_run_folder(fakes: Fakes) -> None:
    fakes("sbatch", "true")
    said = refused(fakes, UnclearError)
    [run] = fakes.runs()
    reason = "sbatch answered '', which has no job id in it."
    assert said == (
        f"{reason} Whether sbatch has submitted the job is not known: look at `squeue --me` before submitting again. "
        f"The run folder is kept: {run}"
    )
    assert (run / "jobs.txt").read_text() == "?\n"
    refuse_foreign_script(run / "job.sbatch", trust=False)  # it is this user's own
    assert json.loads((run / "run.json").read_text())["submission"].startswith(reason)


def test_a_lost_job_is_found_by_its_script(fakes: Fakes) -> None:
    fakes("sbatch", "true")
    refused(fakes, UnclearError)
    [run] = fakes.runs()
    with_script = f'case "$*" in *%o*) echo "77|RUNNING|/other"; echo "78|PENDING|{run}/job.sbatch";; *) echo "78|PENDING";; esac'
    fakes("squeue", with_script)
    assert refused(fakes, SubmitError, f"resume={run}").startswith(
        "job 78 is pending and belongs to this run"
    )
    fakes("squeue", 'case "$*" in *%o*) ;; *) exit 3;; esac')
    fakes.chain("exit 1", good=9)
    fakes.submit(f"resume={run}")
    assert len(fakes.asked("sbatch")) == 2


def test_a_lost_job_of_pbs_is_looked_for_by_the_user(fakes: Fakes) -> None:
    """Its queue does not name the script of a job."""
    fakes("qsub", "true")
    fakes("qstat", "exit 1")
    refused(fakes, UnclearError, "cluster=pbs")
    [run] = fakes.runs()
    said = refused(fakes, SubmitError, "cluster=pbs", f"resume={run}")
    assert said.startswith("whether an earlier submission of this run is queued is not known: look at `qstat")
    assert len(fakes.asked("qsub")) == 1


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def ended(fakes: Fakes) -> Path:
    """A run whose job has left the queue."""
    fakes.chain("exit 1")
    fakes.submit("trainer.max_epochs=3")
    fakes.queue.write_text("4001|COMPLETED\n")
    return fakes.runs()[0]


def test_a_resume_whose_chain_breaks_leaves_the_run_as_it_was(fakes: Fakes, ended: Path) -> None:
    before = files(ended)
    fakes.chain("exit 1", good=2)
    assert "Job 4002, already accepted, was cancelled" in refused(
        fakes, SubmitError, f"resume={ended}", "cluster.chain=2"
    )
    assert files(ended) == before


def test_variables_of_squeue_do_not_hide_jobs(
    fakes: Fakes, ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.queue.write_text("4001|RUNNING\n")
    fakes("squeue", f'[ "$SQUEUE_PARTITION" ] || cat {fakes.queue}')
    monkeypatch.setenv("SQUEUE_PARTITION", "gpu")
    assert "job 4001 is running" in refused(fakes, SubmitError, f"resume={ended}")


@pytest.mark.parametrize("jobs", ["4001", "4001 4002"])
@pytest.mark.quick("4001")
def test_ctrl_c_while_jobs_are_awaited(fakes: Fakes, jobs: str) -> None:
    """Squeue gets it too, as in a terminal. The jobs continue, and nothing cancels them."""
    count = len(jobs.split())
    fakes.chain("exit 9", good=count)
    fakes("squeue", f"cat {fakes.queue}; sleep 1")
    words = ["cluster=slurm", "wait=true", f"cluster.chain={count}", f"paths.results={fakes.results}"]
    with start_python("src/train.py", *words, start_new_session=True) as process:
        try:
            # the last job is recorded, and squeue runs
            wait_until(lambda: len(fakes.asked("sbatch")) == count and fakes.asked("squeue"))
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)
            said = process.communicate(timeout=120)[1]
        finally:
            process.kill()
    assert process.returncode == 130, said
    expected = "job 4001 continues. To stop it" if count == 1 else "jobs 4001, 4002 continue. To stop them"
    assert f"error: interrupted: no longer waiting; {expected}: src/jobs.py cancel.\n" == said
    assert not fakes.asked("scancel") and fakes.queue.read_text().count("PENDING") == count
    [run] = fakes.runs()
    assert (run / "jobs.txt").read_text().split() == jobs.split()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.quick("True")
def test_ctrl_c_while_sbatch_runs(fakes: Fakes, again: bool) -> None:
    """Sbatch may end, and its job is cancelled. A second Ctrl-C ends it, and the folder stays."""
    fakes("sbatch", f"sleep {60 if again else 2}; echo 4001\\|PENDING >>{fakes.queue}; echo 4001")
    process = start_python("src/train.py", "cluster=slurm", f"paths.results={fakes.results}")
    try:
        wait_until(lambda: fakes.asked("sbatch"))
        process.send_signal(signal.SIGINT)
        if again:
            assert process.stderr and process.stderr.readline()  # the first one is noted
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    if again:
        assert process.returncode == 130
        assert "error: interrupted while sbatch was running. Whether sbatch has submitted the job" in said
        assert len(fakes.runs()) == 1
    else:
        assert process.returncode == 130
        assert "error: interrupted. Job 4001, already accepted, was cancelled: nothing is queued." in said
        assert fakes.queue.read_text() == "4001|CANCELLED\n"
        assert fakes.runs() == []
    assert "Traceback" not in said
