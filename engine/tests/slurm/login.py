"""The project's commands on a testbed's login node, and readers of their jobs' results."""

import csv
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import info
from train_anywhere.files import ROOT

SMALL = ("trainer.max_epochs=1", "monitor.tensorboard=false", "monitor.ranks=true")
"""A training of seconds whose ranks print their place."""

EACH_STEP = ("model=mlp", "trainer.max_epochs=1000", "trainer.log_every_n_steps=1")
"""A training that `trainer.max_steps` ends; each step has its row in metrics.csv and its point in TensorBoard."""

NORMAL = """\
srun: cluster configuration lacks support for cpu binding
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: got SIGCONT
slurmstepd-node1: error: *** STEP 7.1 ON node1 CANCELLED AT 2026-11-27T07:20:50 ***
srun: forcing job termination
slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-27T07:20:50 DUE TO TIME LIMIT ***
slurmstepd: error: *** STEP 7.1 ON node1 CANCELLED AT 2026-11-27T07:20:50 DUE TO JOB REQUEUE ***
srun: error: node1: task 0: Terminated
srun: error: node[1-2]: tasks 0-1: Exited with exit code 75
srun: Terminating StepId=7.1"""
"""Lines that Slurm prints when a job reaches its time limit, is cancelled or is requeued."""


class Login:
    """A person on the login node.

    Args:
        testbed: the cluster.
        folder: on storage that every node sees; run folders are made below its `results`.
        root: folder of the project.
    """

    def __init__(self, testbed: Testbed, folder: Path, root: Path = ROOT) -> None:
        self.testbed, self.folder, self.root = testbed, folder, root
        self.results = folder / "results"
        folder.mkdir(exist_ok=True)

    def command(self, program: str, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`python src/<program>.py words...`, or `python -m train_anywhere <program> words...`"""
        file = self.root / "src" / f"{program}.py"
        start = [str(file)] if file.is_file() else ["-m", "train_anywhere", program]
        command = [sys.executable, *start, *words]
        environ, where = {**self.testbed.env(), "OMP_NUM_THREADS": "1"}, self.folder
        if not file.is_file():
            environ["TRAIN_ROOT"] = str(self.root)
        return subprocess.run(
            command, env=environ, cwd=where, capture_output=True, text=True, timeout=timeout
        )

    def train(self, *words: str) -> str:
        """Run `python src/train.py words...` with run folders below `results`. Return its output."""
        in_quotes = "'" + str(self.results).replace("'", "\\'") + "'"
        done = self.command("train", *words, f"paths.results={in_quotes}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, *words: str) -> tuple[str, Path]:
        """Submit. Return the first job id and the run folder, of a sweep those of its first member."""
        said = self.train(*words)
        found = re.match(r"Submitted job (\d+)", said)
        assert found, said
        of_the_job = {found[1], f"{found[1]}_0"}
        runs = [p.parent for p in self.results.glob("*/*/jobs.txt") if of_the_job & {*p.read_text().split()}]
        assert len(runs) == 1, said
        return found[1], runs[0]

    def result(self, *words: str, timeout: float = 240) -> Path:
        """Submit and wait for a job that must be COMPLETED. Return the run folder."""
        job, run = self.submit(*words)
        assert self.testbed.wait_job(job, timeout) == "COMPLETED", log(run)
        return run

    def jobs(self, *words: str) -> str:
        """Run `python src/jobs.py words...` and return its output."""
        done = self.command("jobs", *words, "--results", str(self.results))
        assert done.returncode == 0, done.stderr
        return done.stdout


def log(run: Path) -> str:
    """Everything that the jobs of a run printed."""
    return "\n".join(p.read_text() for p in sorted(run.glob("slurm-*.*")))


def steps(run: Path) -> list[int]:
    """The steps in metrics.csv, in the order of its rows."""
    if not (run / "metrics.csv").exists():
        return []
    with open(run / "metrics.csv") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def check_curve(run: Path, last: int) -> None:
    """Check that metrics.csv and TensorBoard's files have each step to the last in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = steps(run)
    assert rows == sorted(rows) and {*rows} == {*range(1, last + 1)}, rows
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    logged = [event.step for event in events.Scalars("train/loss")]
    # Lightning counts the first step as 0, Keras as 1
    assert logged[0] in (0, 1) and logged == list(range(logged[0], logged[0] + last))


def trained(run: Path, part: int = 0) -> int:
    """Return the steps that attempt `part` has logged so far, or 0 before it trains."""
    begun = [p["from_step"] for p in info(run).get("attempts", [])[part:] if "from_step" in p]
    return max(steps(run), default=0) - begun[0] if begun else 0


def set_step_seconds(shared_dir: Path, seconds: str) -> None:
    """Set the duration of slowed steps by a rename, because ranks read the file each step."""
    new = shared_dir / "step_seconds.new"
    new.write_text(seconds)
    new.replace(shared_dir / "step_seconds")


def hosts(run: Path) -> dict[int, str]:
    """Return the host of each rank, as ranks print it with `monitor.ranks=true`."""
    return {int(r): h for r, h in re.findall(r"rank (\d+) of \d+: .* on node \d+ \((\S+)\)", log(run))}


def per_host(run: Path) -> list[int]:
    """Ranks on each host, most first."""
    found = list(hosts(run).values())
    return sorted((found.count(h) for h in set(found)), reverse=True)


def wait_for(there: Callable[[], bool], run: Path, seconds: float) -> None:
    """Wait until something is true of a run's job."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"not within {seconds} s:\n{log(run)}"
        time.sleep(0.1)
