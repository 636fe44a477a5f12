"""Profiled steps of `trainer.profiler` and of requests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.training.test_progress import open_progress
from train_anywhere.monitor import live
from train_anywhere.monitor.live import read_profiles, write
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.profile import Operation, StepProfile


class Counting:
    """A recording whose operation has as many calls as the steps that it covered."""

    running = 0

    def __init__(self, folder: Path, name: str) -> None:
        self.steps = 0
        Counting.running += 1

    def step(self) -> None:
        self.steps += 1

    def finish(self) -> list[Operation]:
        Counting.running -= 1
        return [Operation("step", self.steps, 1.0)]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    Counting.running = 0
    return RunDir(tmp_path)


def ask(run: RunDir, number: int, steps: int, ranks: list[int]) -> None:
    write(run.monitor / live.PROFILE, {"number": number, "steps": steps, "ranks": ranks})


def train(profile: StepProfile, first: int, last: int, at: Callable[[int], None] = lambda step: None) -> None:
    """Make the calls of a training that resumes at step `first` and ends after step `last`."""
    profile.after_step(first)
    for step in range(first + 1, last + 1):
        at(step)
        profile.after_step(step)


def found(run: RunDir) -> list[tuple[int, int, int, int]]:
    """Return number, first and last step of each profile, and the recorded steps."""
    return [(one.number, one.first, one.last, one.operations[0][1]) for one in read_profiles(run)]


@pytest.mark.parametrize(
    ("steps", "resumed", "profiled"),
    [
        ("1-3", 0, [(0, 1, 3, 3)]),
        ("4-4", 0, [(0, 4, 4, 1)]),
        ("10-12", 9, [(0, 10, 12, 3)]),
        ("10-12", 10, [(0, 11, 12, 2)]),
        ("10-12", 12, []),
    ],
)
def test_exactly_these_steps_are_profiled(run, steps, resumed, profiled) -> None:
    lines: list[str] = []
    profile = StepProfile(run, 0, steps, Counting, lines.append)
    train(profile, resumed, 20)
    profile.close()
    assert found(run) == profiled and len(lines) == len(profiled) and Counting.running == 0


def test_a_request_does_not_replace_the_configured_steps(run: RunDir) -> None:
    ask(run, 7, 2, [0])
    profile = StepProfile(run, 0, "10-12", Counting, lambda line: None)
    seen = []

    def at(step: int) -> None:
        seen.extend(one for one in found(run) if one not in seen)
        if step == 3:
            profile.request(7)

    train(profile, 0, 20, at)
    assert seen == [(7, 4, 5, 2), (0, 10, 12, 3)]


def test_the_first_step_can_be_profiled(run: RunDir) -> None:
    with open_progress("none", run=run.path, profiled=("1-2", Counting)) as progress:
        for step in (1, 2):
            progress.profile.after_step(step)
    assert found(run) == [(0, 1, 2, 2)]


@pytest.mark.parametrize(("last", "running"), [(8, 0), (9, 1)])
def test_steps_after_the_end_are_reported(run: RunDir, last: int, running: int) -> None:
    lines: list[str] = []
    profile = StepProfile(run, 0, "10-12", Counting, lines.append)
    train(profile, 0, last)
    assert Counting.running == running
    profile.close()
    assert lines == [f"steps 10-12 are not profiled: training ended after step {last}."]
    assert found(run) == [] and Counting.running == 0


def test_each_rank_profiles_its_own_steps(run: RunDir) -> None:
    ask(run, 9, 3, [1])
    for profile in [StepProfile(run, rank, "10-12", Counting, lambda line: None) for rank in (0, 1)]:
        profile.after_step(0)
        for step in range(1, 15):
            if step == 3:
                profile.request(9)
            profile.after_step(step)
    assert found(run) == [(0, 10, 12, 3), (9, 4, 6, 3)]
