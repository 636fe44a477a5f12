"""Any program as a job of a real Slurm: ranks by each launcher, stopped and started again, its files on the node's disk."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login, log, wait_for
from train_anywhere.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

PROGRAMS = Path("examples/programs")
TWO = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=2")


def submit(login: Login, *words: str) -> tuple[str, Path]:
    """`python src/run.py words...` for a program; returns the job id and the run folder."""
    at = words.index("--")
    done = login.command("run", *words[:at], f"paths.results={login.results}", *words[at:])
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.match(r"Submitted job (\d+)", done.stdout)
    assert found, done.stdout
    (run,) = [p.parent for p in login.results.glob("*/*/jobs.txt") if p.read_text().strip() == found[1]]
    return found[1], run


def script(name: str) -> str:
    """The path of an example, as it is typed from another folder."""
    from train_anywhere.files import ROOT

    return str(ROOT / PROGRAMS / name)


def finished(login: Login, *words: str) -> Path:
    """Submit and wait for a program that must end with 0; returns its run folder."""
    job, run = submit(login, *words)
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert info(run)["state"] == "completed"
    return run


def test_a_program_is_killed_requeued_and_goes_on(login: Login) -> None:
    """It handles no signal; its checkpoints are written to the node's disk and copied at the end."""
    words = ("--epochs", "120", "--seconds", "0.1")
    job, run = submit(login, "cluster=slurm", "trainer.devices=1", "--", script("resumable.py"), *words)
    wait_for(lambda: "epoch 20/120" in log(run), run, 90)
    assert "running" in login.jobs("status", job)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    wait_for(lambda: "back to the queue" in log(run), run, 60)
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    started = [int(n) for n in re.findall(r"starting at epoch (\d+)", log(run))]
    assert started[0] == 0 and len(started) == 2 and started[1] >= 20, log(run)
    assert json.loads((run / "checkpoints" / "newest.json").read_text()) == {"epoch": 120}
    assert info(run)["state"] == "completed" and info(run)["restarts"] == 1
    assert "completed" in login.jobs("status", job)


SPREAD = "spread of the weights 0"


@pytest.mark.parametrize(
    "launch, program, arguments, there",
    [
        ("srun", "horovod_minimal.py", [], "average of the ranks: 1.5"),
        ("srun", "main.py", ["--ddp"], SPREAD),
        *(
            pytest.param(launch, program, arguments, there, marks=pytest.mark.slow)
            for launch, program, arguments, there in (
                ("mpirun", "horovod_minimal.py", [], "average of the ranks: 1.5"),
                ("srun", "train_hvd.py", ["--epochs", "3"], SPREAD),
                ("horovodrun", "train_hvd.py", ["--epochs", "3"], SPREAD),
                ("mpirun", "train_hvd.py", ["--epochs", "3"], SPREAD),
                ("torchrun", "main.py", ["--ddp"], SPREAD),
                ("mpirun", "main.py", ["--ddp"], SPREAD),
                ("srun", "tf_workers.py", [], "workers counted: 4 of 4"),
            )
        ),
    ],
)
def test_programs_of_guides(
    login: Login, launch: str, program: str, arguments: list[str], there: str
) -> None:
    """Four ranks on two nodes find each other by each launcher; each line has the mark of its rank."""
    run = finished(login, *TWO, f"launch={launch}", "--", script(program), *arguments)
    lines = [line for line in log(run).splitlines() if there in line]
    assert sorted(re.findall(r"\[rank (\d)\]", "\n".join(lines))) == ["1", "2", "3"], log(run)
    assert len(lines) == 4
    status = login.jobs("status", run.name)
    assert "completed" in status and "evaluate.py" not in status


FLAGS = """#!/bin/bash
read_from=$TRAIN_PERSISTENT_CHECKPOINTS write_to=$TRAIN_LOCAL_CHECKPOINTS
unset TRAIN_PERSISTENT_CHECKPOINTS TRAIN_LOCAL_CHECKPOINTS
exec {python} examples/programs/resumable.py --read-checkpoints-from "$read_from" --write-checkpoints-to "$write_to" "$@"
"""
"""A script as docs/clusters/ibex.md has it; the program has only the flags to go by."""


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("launch", ["horovodrun", "srun"])
def test_a_script_with_flags_for_the_folders(
    login: Login, launch: str, request: pytest.FixtureRequest
) -> None:
    """Killed on two nodes and requeued, it continues from the copy of its checkpoints."""
    path = Path(script(f"flags_{os.getpid()}.sh"))
    request.addfinalizer(path.unlink)
    path.write_text(FLAGS.format(python=sys.executable))
    path.chmod(0o755)
    job, run = submit(login, *TWO, f"launch={launch}", "--", str(path), "--epochs", "100")
    wait_for(lambda: "epoch 20/100" in log(run), run, 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    started = [int(n) for n in re.findall(r"starting at epoch (\d+)", log(run))]
    assert started[:4] == [0] * 4 and len(started) == 8 and min(started[4:]) >= 20, log(run)
    assert json.loads((run / "checkpoints" / "newest.json").read_text()) == {"epoch": 100}


COUNTS = """
import os, signal, sys, time
from pathlib import Path
name, got = f"signals-{os.environ['RANK']}", []
if Path(os.environ["TRAIN_PERSISTENT_CHECKPOINTS"], name).exists():
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
print("ready", flush=True)
while not got:
    time.sleep(0.1)
time.sleep(3)
Path(os.environ["TRAIN_LOCAL_CHECKPOINTS"], name).write_text(str(len(got)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["srun", "torchrun", "mpirun"])
def test_each_rank_gets_one_signal(login: Login, launch: str, request: pytest.FixtureRequest) -> None:
    path = Path(script(f"counts_{os.getpid()}.py"))
    request.addfinalizer(path.unlink)
    path.write_text(COUNTS)
    job, run = submit(login, *TWO, f"launch={launch}", "--", str(path))
    wait_for(lambda: log(run).count("ready") == 4, run, 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    assert login.testbed.wait_job(job, 240) == "COMPLETED", log(run)
    assert [(run / "checkpoints" / f"signals-{rank}").read_text() for rank in range(4)] == ["1"] * 4, log(run)


SAVES = """
import os, sys, time
from pathlib import Path
rank, run = int(os.environ["RANK"]), Path(os.environ["TRAIN_RUN"])
if rank:
    Path(os.environ["TRAIN_LOCAL_CHECKPOINTS"], f"{rank}.pt").write_text("saved")
    (run / f"saved-{rank}").touch()
    time.sleep(1000)
while len([*run.glob("saved-*")]) < 3:
    time.sleep(0.1)
sys.exit(3)
"""


def test_files_of_the_ranks_that_a_failed_one_ends_are_copied(
    login: Login, request: pytest.FixtureRequest
) -> None:
    """From both nodes: srun kills the other ranks before they copy."""
    path = Path(script(f"saves_{os.getpid()}.py"))
    request.addfinalizer(path.unlink)
    path.write_text(SAVES)
    job, run = submit(login, *TWO, "--", str(path))
    assert login.testbed.wait_job(job, 180) == "FAILED", log(run)
    assert sorted(p.name for p in (run / "checkpoints").glob("*.pt")) == ["1.pt", "2.pt", "3.pt"], log(run)


def test_a_rank_that_fails_fails_the_job(login: Login) -> None:
    """The others are ended, and the job is neither requeued nor complete."""
    words = ("--epochs", "1000", "--fails", "3")
    job, run = submit(login, *TWO, "--", script("resumable.py"), *words)
    assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
    assert "rank 3: examples/programs/resumable.py ended with exit code 1." in log(run)
    assert info(run)["state"] == "failed"
    assert "requeue" not in log(run) and "back to the queue" not in log(run)


@pytest.mark.slow
@pytest.mark.mpi
def test_two_nodes_are_stopped_and_go_on(login: Login) -> None:
    """All ranks end after the signal, by each launcher; the job is requeued once, and a cancelled one is not."""
    for launch in ("srun", "torchrun", "mpirun"):
        words = (*TWO, f"launch={launch}", "--", script("resumable.py"), "--epochs", "150")
        job, run = submit(login, *words)
        wait_for(lambda run=run: "\nepoch 20/150" in log(run), run, 90)
        login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
        wait_for(lambda run=run: "back to the queue" in log(run), run, 60)
        assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
        assert info(run)["state"] == "completed" and info(run)["restarts"] == 1
    job, run = submit(login, *TWO, "--", script("resumable.py"), "--epochs", "1000")
    wait_for(lambda: "epoch 20/1000" in log(run), run, 90)
    assert f"cancelled job {job}" in login.jobs("cancel", run.name)
    wait_for(lambda: login.testbed.job_states(job) == ["CANCELLED"], run, 60)
    again = re.search(r"\d+", login.jobs("resubmit", run.name))
    assert again
    wait_for(lambda: len(re.findall(r"^starting at epoch [1-9]", log(run), re.M)) > 0, run, 120)
    login.jobs("cancel", run.name)
