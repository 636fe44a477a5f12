"""Programs that requeue their job themselves: a cancelled job stays away, one that is told to save returns once."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, wait_for
from engine.tests.slurm.programs import LIGHTNING, folder_of, submit
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

SIZE = (
    "cluster=slurm", "trainer.devices=1", "checkpoint.local=null", "cluster.cpus_per_task=1", "cluster.mem=1G",
)  # fmt: skip

SHELL = """#!/bin/bash
saved() { echo "saving after $1"; sleep 3; scontrol requeue "$SLURM_JOB_ID" && echo requeued; }
for name in SIGNALS; do trap "saved $name" $name; done
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || { echo "step 0 again"; exit; }
for i in {0..600}; do echo "step $i"; sleep 0.1; done
"""

SAVING = """
import time
save = pl.Trainer.save_checkpoint

def slowly(*arguments, **options):
    print("saving", flush=True)
    time.sleep(3)
    save(*arguments, **options)

pl.Trainer.save_checkpoint = slowly
"""

MOMENTS = ("start", "step", "saving")
WAYS = ("jobs.py", "scancel", "scancel twice")


def programs(login: Login, kind: str) -> Path:
    """Write a program that requeues its job itself, and return its path."""
    if kind == "lightning":
        before, _, after = LIGHTNING.partition("class Net")
        folder = folder_of(
            login, "pl", mine_py=f"{before}{SAVING}\nclass Net{after}".replace("(60, 1)", "(1200, 1)")
        )
        return folder / "mine.py"
    folder = folder_of(login, kind.replace(" ", "-"), mine_sh=SHELL.replace("SIGNALS", kind))
    (folder / "mine.sh").chmod(0o755)
    return folder / "mine.sh"


def wait_until(login: Login, job: str, run: Path, moment: str) -> None:
    """Wait for a moment in the life of a job: its start, a step of its program, or while that saves after USR1."""
    if moment == "start":
        wait_for(lambda: login.testbed.job_states(job) == ["RUNNING"], run, 200)
        return
    wait_for(lambda: "step 5\n" in log(run), run, 300)
    if moment == "saving":
        login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
        wait_for(lambda: "saving" in log(run), run, 60)


def cancel_each(login: Login, program: Path, *without: str) -> None:
    """Cancel a job at each moment with `jobs.py cancel`, and with one or two scancels. All must be gone."""
    ways = [(way, moment) for way in WAYS for moment in MOMENTS if not {way, moment} & {*without}]
    jobs = [submit(login, *SIZE, "--", str(program)) for _ in ways]
    for (way, moment), (job, run) in zip(ways, jobs, strict=True):
        wait_until(login, job, run, moment)
        if way == "jobs.py":
            login.jobs("cancel", run.name)
        for _ in range(WAYS.index(way)):
            login.testbed.run(["scancel", job])
    for job, run in jobs:
        wait_for(lambda job=job: login.testbed.job_states(job) == ["CANCELLED"], run, 90)
    time.sleep(5)
    for way, (job, run) in zip(ways, jobs, strict=True):
        assert login.testbed.job_states(job) == ["CANCELLED"], (way, log(run))
        assert "step 0 again" not in log(run) and log(run).count("step 0\n") <= 1, (way, log(run))
        print(*way, "after a requeue of its own" if "requeued" in log(run) else "")


def test_a_cancelled_script_that_requeues_itself_is_gone(login: Login) -> None:
    cancel_each(login, programs(login, "USR1"), "start", "scancel twice")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["USR1", "USR1 TERM", "lightning"])
def test_a_program_that_requeues_itself_is_gone_at_any_moment(login: Login, kind: str) -> None:
    cancel_each(login, programs(login, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["USR1", "lightning"])
def test_a_program_that_requeues_itself_returns_once(login: Login, kind: str) -> None:
    """After USR1, and before its time limit, which Slurm checks every 30 s."""
    program = programs(login, kind)
    asked = submit(login, *SIZE, "--", str(program))
    limited = submit(login, *SIZE, "cluster.time=2", "cluster.signal_seconds=60", "--", str(program))
    wait_for(lambda: "step 5\n" in log(asked[1]), asked[1], 200)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", asked[0]])
    for job, run in (asked, limited):
        wait_for(lambda run=run: info(run).get("restarts") == 1, run, 200)
        login.jobs("cancel", run.name)
        wait_for(lambda job=job: login.testbed.job_states(job)[0] in ("CANCELLED", "COMPLETED"), run, 60)
        shown = login.testbed.run(["scontrol", "show", "job", job]).stdout
        assert re.search(r"Restarts=1\b", shown), log(run)


@pytest.mark.slow
def test_a_script_whose_job_only_gets_a_signal_returns(login: Login) -> None:
    """Slurm prints the same line as at a cancel."""
    job, run = submit(login, *SIZE, "--", str(programs(login, "USR1")))
    wait_until(login, job, run, "step")
    login.testbed.run(["scancel", "--signal=TERM", "--batch", job])
    wait_for(lambda: "step 0 again" in log(run), run, 120)


def test_a_cancelled_sweep_and_chain_are_gone(login: Login) -> None:
    """A raw scancel of the running link cancels the next ones too."""
    program = programs(login, "USR1")
    words = ("-m", *SIZE, "args.seed=1,2", f"paths.results={login.results}")
    done = login.command("run", *words, "--", str(program), "{args.seed}")
    sweep = re.search(r"Submitted job (\d+)", done.stdout)
    assert sweep, done.stderr
    words = (*SIZE, "cluster.chain=2", "cluster.requeue=false", f"paths.results={login.results}")
    done = login.command("run", *words, "--", str(program))
    chain = re.search(r"Submitted job (\d+)", done.stdout)
    assert chain, done.stderr
    [run] = [p.parent for p in login.results.glob("*/*/jobs.txt") if chain[1] in p.read_text().split()]
    links = (run / "jobs.txt").read_text().split()
    members = [p.parent for p in login.results.glob("*/*/jobs.txt") if p.parent != run]
    for one in (*members, run):
        wait_for(lambda one=one: "step 5\n" in log(one), one, 120)
    login.jobs("cancel", members[0].name.rpartition("-")[0])
    login.testbed.run(["scancel", chain[1]])
    for job in (sweep[1], *links):
        wait_for(lambda job=job: {*login.testbed.job_states(job)} == {"CANCELLED"}, run, 60)


TOLD = """#!/bin/bash
for name in USR1 TERM; do trap "echo told $name; exit" $name; done
echo ready
while :; do sleep 0.1; done
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["preempted", "cancelled"])
def test_a_program_of_srun_is_told_what_a_term_of_slurm_means(
    testbed_for: Callable[..., Testbed], shared_dir: Path, way: str
) -> None:
    """At both Slurm sends TERM to the task: the program gets USR1 if its job returns to the queue.

    As with control groups, Slurm does not signal the children of a task here.
    """
    login = Login(testbed_for("slurm", conf="ProctrackType=proctrack/pgid"), shared_dir)
    folder = folder_of(login, way, mine_sh=TOLD)
    (folder / "mine.sh").chmod(0o755)
    words = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=1", "cluster.partition=preemptible")
    job, run = submit(login, *words, "--", str(folder / "mine.sh"))
    wait_for(lambda: log(run).count("ready") == 2, run, 120)
    if way == "cancelled":
        login.testbed.run(["scancel", job])
        wait_for(lambda: login.testbed.job_states(job) == ["CANCELLED"], run, 60)
    else:
        urgent = ["srun", "--partition=urgent", "--nodes=4", "--exclusive", "true"]
        assert login.testbed.run(urgent, timeout=120).returncode == 0
        wait_for(lambda: "back to the queue" in log(run), run, 60)
        login.jobs("cancel", run.name)
    told = {"preempted": "told USR1\n", "cancelled": "told TERM\n"}
    assert {line for line in told.values() if line in log(run)} == {told[way]}, log(run)
