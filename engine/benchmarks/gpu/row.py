"""What a part has found, and how it trains: with the project's own functions, in this process."""

import itertools
import os
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.launch.local_run import make_run
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir

WARM = 10
"""Steps that compile, choose kernels and fill queues; they are not timed."""

STRETCH = 10
"""Steps between two looks at the clock."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was tried.
        good: whether it is right; None: it is a figure.
        found: the figure, or what is wrong.
    """

    name: str
    good: bool | None
    found: str


@dataclass(frozen=True)
class Place:
    """Where a part runs.

    Attributes:
        folder: for run folders.
        gpu: whether there is one; without, everything is small, and nothing that it says about speed means anything.
    """

    folder: Path
    gpu: bool

    def words(self, *words: str) -> list[str]:
        """The command line of a run: quiet, in the folder, on the device."""
        return [
            *words,
            "monitor.progress=none",
            "monitor.report=false",
            f"paths.results={self.folder}",
            f"trainer.accelerator={'gpu' if self.gpu else 'cpu'}",
        ]

    def config(self, *words: str) -> Config:
        """The configuration that a command line gives."""
        return load(compose(to_hydra_overrides(self.words(*words))))

    def run(self, *words: str) -> tuple[Config, RunDir]:
        """The configuration, and a new run folder."""
        config = self.config(*words)
        return config, make_run(config, self.words(*words), local_layout(config))


class Clock:
    """Seconds of a step: the median over stretches, after the first steps."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.steps = 0

    def step(self) -> None:
        """One more was given to the device."""
        self.steps += 1
        if self.steps >= WARM and (self.steps - WARM) % STRETCH == 0:
            self.marks.append(time.perf_counter())

    def seconds(self) -> float:
        """Of one step. The device is some steps behind, but as many at the end of a stretch as at its begin."""
        return statistics.median(b - a for a, b in itertools.pairwise(self.marks)) / STRETCH


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """Where two trees of tensors and numbers are not the same, bit for bit; None: nowhere."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{where}: other names"
        return next((d for k in one if (d := difference(one[k], other[k], f"{where}/{k}"))), None)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{where}: another number"
        pairs = enumerate(zip(one, other, strict=True))
        return next((d for n, (a, b) in pairs if (d := difference(a, b, f"{where}/{n}"))), None)
    shaped = hasattr(one, "shape")
    same = one.shape == other.shape and bool((one == other).all()) if shaped else one == other
    return None if same else where


def resumed(
    place: Place,
    words: Sequence[str],
    stop: Sequence[str],
    fit: Callable[[Config, RunDir], Outcome],
    state: Callable[[RunDir], Any],
) -> str | None:
    """What is not the same, bit for bit, after a run that was stopped and resumed; None: nothing.

    Args:
        words: of the run.
        stop: stops it.
        fit: trains.
        state: what the newest checkpoint of a run holds.
    """
    config, whole = place.run(*words)
    done = fit(config, whole)
    stopped, parts = place.run(*words, *stop)
    first = fit(stopped, parts)
    if first.state != "preempted":
        return f"the run to be stopped is {first.state}"
    second = fit(config, parts)
    if second.state != "completed" or second.step != done.step:
        return f"the resumed run is {second.state} at step {second.step}"
    return difference(state(whole), state(parts))


def send_stop() -> None:
    """The signal that a scheduler sends ahead of a time limit, to this process."""
    os.kill(os.getpid(), signal.SIGUSR1)


def tried(name: str, check: Callable[[], str | None]) -> Row:
    """A row for what a function finds wrong, None for nothing; an error is found too, and its traceback goes to the log."""
    began = time.monotonic()
    try:
        wrong = check()
    except Exception as error:
        traceback.print_exc()
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return Row(name, wrong is None, wrong or f"{time.monotonic() - began:.0f} s")
