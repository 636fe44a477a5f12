"""The reason that `status` and `logs` name if a job's log has none, with a real Slurm."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, NORMAL, Login, trained, wait_for
from tools.testing.processes import wait_until
from tools.testing.weights import info
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler.queue import JobStates, PendingJob
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.job_end import JobEnd, explain, explain_start_failure


def run_of(tmp_path: Path, log: str | None = None) -> RunEntry:
    if log is not None:
        (tmp_path / "slurm-7.out").write_text(log)
    return RunEntry(RunDir(tmp_path), None, "slurm", tmp_path / "job.sbatch", ("6", "7"))


EXPLAINED = [
    (JobEnd("FAILED", "JobLaunchFailure", "0:53"), "could not open the log: the run folder"),
    (JobEnd("FAILED", "RaisedSignal:53(Real-time_signal_19)", "0:53"), "could not open the log"),
    (JobEnd("FAILED", "JobLaunchFailure", "0:10"), "the batch script was killed by signal 10 (SIGUSR1)"),
    (JobEnd("FAILED", "JobLaunchFailure", "0:0"), "a node could not start it"),
    (JobEnd("FAILED", "JobLaunchFailure", "1:0"), "ended with exit code 1 before it printed anything"),
    (JobEnd("FAILED", "NonZeroExitCode", "137:0"), "was killed by signal 9 (SIGKILL)"),
    (JobEnd("FAILED", "NonZeroExitCode", "1:0"), "ended with exit code 1 before it printed anything"),
    (JobEnd("FAILED", "BadConstraints", "0:0"), "the nodes no longer satisfy its request"),
    (JobEnd("TIMEOUT", "TimeLimit", "0:15"), "raise cluster.time"),
    (JobEnd("OUT_OF_MEMORY", "OutOfMemory", "0:125"), "raise cluster.mem"),
    (JobEnd("NODE_FAIL", "NodeFail", "1:0"), "one of its nodes failed"),
    (JobEnd("BOOT_FAIL", "None", ""), "one of its nodes failed"),
    (JobEnd("DEADLINE", "DeadLine", "0:0"), "before its deadline"),
    (JobEnd("SOMETHING_NEW", "", ""), ""),
    (JobEnd("RUNNING", "None", "0:0"), ""),
    (JobEnd("CANCELLED", "None", "0:15"), ""),
    (None, ""),
]


def test_a_job_without_a_log_is_explained(tmp_path: Path) -> None:
    for ended, expected in EXPLAINED:
        said = explain(run_of(tmp_path), ended)
        assert expected in said and bool(said) == bool(expected)
        if ended and said:
            assert said.startswith(f"Slurm reports State={ended.state}") and said.endswith(".")
            assert "for job 7: " in said and "Reason=None" not in said


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("slurmstepd: error: execve(): /tmp/.venv/bin/python: No such file or directory", "not below cluster.local_disk."),
        ("Traceback\nModuleNotFoundError: No module named 'timm'\n", "No module named 'timm': install it in the job's environment"),
        ("/bin/bash: line 3: /tmp/run.sh: Permission denied\n", "Permission denied: it must be on a disk that all nodes share"),
        ('Lmod has detected the following error: The following module(s) are unknown: "cuda/99"\n', "compare cluster.modules"),
        ("srun: error: Unable to create step for job 7: Invalid generic resource\n", "Invalid generic resource: Slurm could not start"),
        ("an ordinary line\n", ""),
        (f"{NORMAL}\n", ""),
        (
            f"{NORMAL}\nslurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-27T07:20:50 DUE TO NODE FAILURE, SEE LOG ***\n",
            "NODE FAILURE, SEE LOG ***: Slurm could not start",
        ),
        ("srun: error: node1: task 0: Exited with exit code 1\n", "exit code 1: Slurm could not start"),
    ],
)  # fmt: skip
def test_a_job_that_started_no_rank_says_why(tmp_path: Path, log: str, says: str) -> None:
    run = run_of(tmp_path, log)
    said = explain_start_failure(run, {})
    assert says in said and bool(said) == bool(says)
    assert (
        explain_start_failure(run, {"attempts": [{"step": 1}]}) == ""
    )  # ranks have trained: the log has more


def test_a_log_that_tells_more_needs_no_words_of_slurm(tmp_path: Path) -> None:
    ordinary, killed = (
        JobEnd("FAILED", "NonZeroExitCode", "1:0"),
        JobEnd("OUT_OF_MEMORY", "OutOfMemory", "0:125"),
    )
    assert explain(run_of(tmp_path, ""), ordinary)
    run = run_of(tmp_path, "Traceback")
    assert not explain(run, ordinary) and explain(run, killed)
    (tmp_path / "slurm-7.out").rename(tmp_path / "slurm-6.out")  # of the job before
    assert explain(run, ordinary)


@pytest.fixture
def in_tmp() -> Iterator[Path]:
    """A folder in /tmp, of which each node has its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.slow
def test_a_job_whose_folder_the_nodes_do_not_have(login: Login, in_tmp: Path) -> None:
    login.results = in_tmp
    job, run = login.submit("cluster=slurm", "cluster.local_disk=/dev/shm")
    login.testbed.wait_job(job)
    said = f"Slurm reports State=FAILED, Reason=JobLaunchFailure, ExitCode=0:53 for job {job}: Slurm could not open the log"
    assert f"Why:         {said}" in login.jobs("status", run.name)
    document = json.loads(login.jobs("status", "--json", run.name))["runs"][0]
    assert document["why"].startswith(said)
    assert document["ended"] == {"state": "FAILED", "reason": "JobLaunchFailure", "exit_code": "0:53"}
    for verb in (["logs"], ["logs", "-f"]):
        done = login.command("jobs", *verb, run.name, "--results", str(login.results))
        assert done.returncode == 2 and f"{run.name} has no log. {said}" in done.stderr
    (run / f"slurm-{job}.out").touch()
    done = login.command("jobs", "logs", run.name, "--results", str(login.results))
    assert done.returncode == 0 and done.stderr.startswith(said)


def test_a_held_job_is_known_by_its_reason() -> None:
    held = ["JobHeldUser", "JobHeldAdmin", "job requeued in held state", "launch failed requeued held"]
    assert [reason for reason in [*held, "Resources", "BeginTime"] if PendingJob(reason).is_held] == held


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.slow
def test_a_held_job_is_released_by_the_command_that_status_names(login: Login) -> None:
    job, run = login.submit("cluster=slurm", 'cluster.extra=["--hold"]')
    assert f"Next:        scontrol release {job}\n" in login.jobs("status", run.name)
    login.testbed.run(["scontrol", "release", job])
    assert "scontrol" not in login.jobs("status", run.name)
    wait_for(lambda: login.testbed.job_states(job) == ["RUNNING"], run, 60)
    login.testbed.run(["scontrol", "requeuehold", "State=SpecialExit", job])
    wait_for(lambda: login.testbed.job_states(job) == ["SPECIAL_EXIT"], run, 60)
    shown = login.jobs("status", run.name)
    assert "Waits:       job requeued in held state" in shown and f"scontrol release {job}\n" in shown
    login.jobs("cancel", run.name)
    job, run = login.submit("cluster=slurm", "-m", "seed=1,2", 'cluster.extra=["--hold"]')
    sweep = run.name.rpartition("-")[0]
    assert f"Next:        scontrol release {job}_0,{job}_1\n" in login.jobs("status", sweep)
    login.testbed.run(["scontrol", "release", f"{job}_0,{job}_1"])
    assert "scontrol" not in login.jobs("status", sweep)
    login.jobs("cancel", sweep)


@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.slow
def test_a_cancelled_run_that_saves_is_cancelled(login: Login, slow_steps: str) -> None:
    job, run = login.submit("cluster=slurm", *EACH_STEP, slow_steps)
    wait_for(lambda: trained(run) > 2, run, 120)
    login.jobs("cancel", run.name)
    login.testbed.wait_job(job)
    wait_until(lambda: info(run)["state"] != "running")
    assert info(run)["state"] == "preempted"  # the ranks do not know why they were asked to stop
    assert f"{run.name}  cancelled  " in login.jobs("status", run.name)
    assert info(run)["state"] == "cancelled"  # after Slurm has forgotten the job
    assert JobStates({job: "CANCELLED"}).active([job]) == {}
