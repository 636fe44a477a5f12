"""Programs that are measured in turn, round by round: ratios with their spread, and which rounds the machine disturbed.

A machine that others use, or whose processor runs slower for a while, spoils whole rounds. Before and after each program a fixed
piece of work is timed: a round in which it took much longer than in the best one is disturbed. Its figures count only where all
rounds are, and the tables say so.
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
"""The fixed work takes this many times as long as in the best moment of the run."""


class Ratio(NamedTuple):
    """Of two programs of the same round."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f}  ({self.least:.2f} to {self.most:.2f})"


@dataclass
class Rounds:
    """What was measured.

    Attributes:
        seconds: of each program, one for each round.
        work: seconds of the fixed work in each round, its slowest.
        best: of the whole run, its quickest.
    """

    seconds: dict[str, list[float]]
    work: list[float] = field(default_factory=list)
    best: float = float("inf")

    def kept(self) -> list[int]:
        """Numbers of the rounds that count."""
        quiet = [number for number, work in enumerate(self.work) if work <= DISTURBED * self.best]
        return quiet or [*range(len(self.work))]

    def ratio(self, name: str, base: str) -> Ratio:
        """Of the seconds of one program to those of another."""
        ours, theirs = self.seconds[name], self.seconds[base]
        found = [ours[number] / theirs[number] for number in self.kept()]
        return Ratio(statistics.median(found), min(found), max(found))

    def over(self, name: str, base: str) -> float:
        """Seconds that one takes more than another, the median."""
        ours, theirs = self.seconds[name], self.seconds[base]
        return statistics.median(ours[number] - theirs[number] for number in self.kept())

    def middle(self, name: str) -> float:
        """Seconds of a program, the median."""
        return statistics.median(self.seconds[name][number] for number in self.kept())

    @property
    def disturbed(self) -> int:
        """How many rounds were."""
        return sum(work > DISTURBED * self.best for work in self.work)

    def said(self) -> str:
        """A line about the disturbed ones; empty if there is none."""
        if not self.disturbed:
            return ""
        whole = self.disturbed == len(self.work)
        return (
            f"{self.disturbed} of {len(self.work)} rounds were disturbed: fixed work took up to {max(self.work) / self.best:.1f} times as "
            f"long as at its best. {'All are kept, for there is no other.' if whole else 'They are left out.'}"
        )


def in_turn(
    names: Iterable[str],
    rounds: int,
    measure: Callable[[str], float],
    tell: Callable[[str], None] | None = None,
    unused: int = 0,
) -> Rounds:
    """Measure each program once in each round.

    Args:
        measure: runs the program of that name; returns seconds.
        tell: gets "round 2 of 3" as each begins.
        unused: first rounds that do not count, in which files come into memory.
    """
    found = Rounds({name: [] for name in names})
    for number in range(unused + rounds):
        if tell and number >= unused:
            tell(f"round {number - unused + 1} of {rounds}")
        work = [fixed_work()]
        taken = {}
        for name in found.seconds:
            taken[name] = measure(name)
            work.append(fixed_work())
        if number >= unused:
            for name, seconds in taken.items():
                found.seconds[name].append(seconds)
            found.work.append(max(work))
            found.best = min(found.best, *work)
    return found


ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def number_of(program: Sequence[str]) -> float:
    """What a program of Python prints last, run on one thread. Exits with what it says if it fails."""
    environ = {**os.environ, **ONE_THREAD}
    done = subprocess.run([sys.executable, *program], env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


class Program:
    """A program of Python, run on one thread, that prints a number for each line it reads, and waits while others are measured."""

    def __init__(self, program: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program],
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def number(self) -> float:
        """The next one. Exits with what the program says if it fails."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its last lines say why
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        said = []
        for line in self._process.stdout:
            try:
                return float(line)
            except ValueError:
                said.append(line)  # a warning, or an error
        sys.exit("".join(said))

    def end(self) -> None:
        """It has nothing more to read, so it ends."""
        self._process.communicate()


def fixed_work(tries: int = 9) -> float:
    """Seconds of a piece of work that is always the same, the median of some tries: a tenth of a second in all."""
    taken = []
    for _ in range(tries):
        began = time.perf_counter()
        sum(number * number for number in range(100_000))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
