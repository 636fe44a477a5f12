"""Measure programs in turn, round by round: ratios with their spread, and the number of disturbed rounds.

Other programs, or a processor that runs slower for a while, spoil whole rounds. So a fixed piece of work is timed before and
after each program. A round is disturbed if this work took much longer than at its best. Disturbed rounds count only if all
rounds are disturbed, and the tables report this.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DISTURBED = 1.25
"""A round is disturbed if the fixed work takes this many times its best time of the run."""


class Ratio(NamedTuple):
    """The ratio of two programs' seconds in the same round: median and range over rounds."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f}  ({self.least:.2f} to {self.most:.2f})"


@dataclass
class Rounds:
    """Measurements of all rounds.

    Attributes:
        seconds: seconds of each program, one value per round.
        work: longest seconds of the fixed work in each round.
        best: shortest seconds of the fixed work in the whole run.
    """

    seconds: dict[str, list[float]]
    work: list[float] = field(default_factory=list)
    best: float = float("inf")

    def counted_rounds(self) -> list[int]:
        """Return the indices of the rounds that count: the undisturbed ones, or all if every round is disturbed."""
        quiet = [number for number, work in enumerate(self.work) if work <= DISTURBED * self.best]
        return quiet or [*range(len(self.work))]

    def ratio(self, name: str, base: str) -> Ratio:
        """Return the seconds of program `name` divided by those of program `base`."""
        ours, theirs = self.seconds[name], self.seconds[base]
        found = [ours[number] / theirs[number] for number in self.counted_rounds()]
        return Ratio(statistics.median(found), min(found), max(found))

    def difference(self, name: str, base: str) -> float:
        """Return the median of the seconds that program `name` takes longer than program `base`."""
        ours, theirs = self.seconds[name], self.seconds[base]
        return statistics.median(ours[number] - theirs[number] for number in self.counted_rounds())

    def median_seconds(self, name: str) -> float:
        """Return the median seconds of a program."""
        return statistics.median(self.seconds[name][number] for number in self.counted_rounds())

    @property
    def disturbed(self) -> int:
        """The number of disturbed rounds."""
        return sum(work > DISTURBED * self.best for work in self.work)

    def describe_disturbed(self) -> str:
        """Return a line about the disturbed rounds; empty if there are none."""
        if not self.disturbed:
            return ""
        every = self.disturbed == len(self.work)
        return (
            f"{self.disturbed} of {len(self.work)} rounds were disturbed: fixed work took up to {max(self.work) / self.best:.1f} times "
            f"its best time. {'All rounds count, because all were disturbed.' if every else 'They do not count.'}"
        )


def take_turns(
    names: Iterable[str],
    rounds: int,
    measure: Callable[[str], float],
    report: Callable[[str], None] | None = None,
    unused: int = 0,
) -> Rounds:
    """Measure each program once in each round.

    Args:
        names: names of the programs.
        rounds: number of rounds that count.
        measure: runs the program of that name, and returns its seconds.
        report: called with "round 2 of 3" at the start of each round.
        unused: number of additional first rounds that do not count, and load files into memory.
    """
    found = Rounds({name: [] for name in names})
    for number in range(unused + rounds):
        if report and number >= unused:
            report(f"round {number - unused + 1} of {rounds}")
        work = [fixed_work()]
        seconds = {}
        for name in found.seconds:
            seconds[name] = measure(name)
            work.append(fixed_work())
        if number >= unused:
            for name, value in seconds.items():
                found.seconds[name].append(value)
            found.work.append(max(work))
            found.best = min(found.best, *work)
    return found


ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run_for_number(program: Sequence[str]) -> float:
    """Run a Python program on one thread and return the last number it prints; exit with its errors if it fails."""
    environ = {**os.environ, **ONE_THREAD}
    done = subprocess.run([sys.executable, *program], env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


class Program:
    """A Python program on one thread that prints a number for each line it reads, and waits while others are measured."""

    def __init__(self, program: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program],
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def next_number(self) -> float:
        """Return the next number; exit with the output of the program if it fails."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # it has exited, and its last lines give the reason
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            try:
                return float(line)
            except ValueError:
                lines.append(line)  # a warning, or an error
        sys.exit("".join(lines))

    def close(self) -> None:
        """Close the program's input, so that it exits."""
        self._process.communicate()


def fixed_work(tries: int = 9) -> float:
    """Return the median seconds of several tries of the same work; all tries together take a tenth of a second."""
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        sum(number * number for number in range(100_000))
        times.append(time.perf_counter() - began)
    return statistics.median(times)
