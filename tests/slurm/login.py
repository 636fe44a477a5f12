"""The project's commands as typed on the login node of a testbed, and what their jobs leave; a tool of several tests."""

import csv
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm.testbed.cluster import Testbed
from src.rundir import ROOT

SMALL = ("trainer.max_epochs=1", "monitor.tensorboard=false", "monitor.ranks=true")
"""A training of seconds whose ranks say where they are."""


class Login:
    """A person on the login node.

    Args:
        testbed: the cluster.
        folder: on storage that every node sees; run folders are made below its `results`.
        root: folder of the project.
    """

    def __init__(self, testbed: Testbed, folder: Path, root: Path = ROOT) -> None:
        self.testbed, self.results, self.root = testbed, folder / "results", root

    def command(self, program: str, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`python src/<program>.py words...`"""
        command = [sys.executable, str(self.root / "src" / f"{program}.py"), *words]
        environ = {**self.testbed.env(), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)

    def train(self, *words: str) -> str:
        """What `python src/train.py words...` prints, with run folders below `results`."""
        in_quotes = "'" + str(self.results).replace("'", "\\'") + "'"
        done = self.command("train", *words, f"paths.results={in_quotes}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, *words: str) -> tuple[str, Path]:
        """Submit; returns the job id (of a chain: the first one) and the run folder (of a sweep: its first member's)."""
        said = self.train(*words)
        found = re.match(r"Submitted job (\d+)", said)
        assert found, said
        of_the_job = {found[1], f"{found[1]}_0"}
        runs = [p.parent for p in self.results.glob("*/*/jobs.txt") if of_the_job & {*p.read_text().split()}]
        assert len(runs) == 1, said
        return found[1], runs[0]

    def result(self, *words: str, timeout: float = 240) -> Path:
        """Submit and wait for a job that must be COMPLETED; returns the run folder."""
        job, run = self.submit(*words)
        assert self.testbed.wait_job(job, timeout) == "COMPLETED", log(run)
        return run

    def jobs(self, *words: str) -> str:
        """What `python src/jobs.py words...` prints."""
        done = self.command("jobs", *words, "--results", str(self.results))
        assert done.returncode == 0, done.stderr
        return done.stdout


def log(run: Path) -> str:
    """Everything that the jobs of a run printed."""
    return "\n".join(p.read_text() for p in sorted(run.glob("slurm-*.*")))


def steps(run: Path) -> list[int]:
    """The steps in metrics.csv, in the order of its rows."""
    with open(run / "metrics.csv") as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def hosts(run: Path) -> dict[int, str]:
    """Host of each rank, as the ranks said at their start with `monitor.ranks=true`."""
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
