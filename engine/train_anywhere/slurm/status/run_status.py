"""What is known of one run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_anywhere.slurm.scheduler.queue import ENDED
from train_anywhere.slurm.status.sources.ended import Ended
from train_anywhere.slurm.status.sources.pending import Pending

OVER = {state.lower() for state in ENDED} | {"lost", "unknown", "nothing"}
"""States of a run that will not train again by itself; Slurm has many for jobs that may."""

FAILED = ("failed", "lost", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline")
"""States of a run that did not end well by itself."""


@dataclass(frozen=True)
class Checkpoint:
    """The newest complete checkpoint of a run.

    Attributes:
        age: seconds since it was published.
    """

    step: int
    path: Path
    age: float


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        epoch: the present one, from 1; of a run that has ended, epochs completed.
        step: optimizer steps done.
        section: train, validation, test, checkpoint ...; None if nobody says.
        rate: rows per second, in `unit`s.
        seconds_left: until the last step, at the pace so far.
        moved: seconds since it last moved.
        data_wait: share of the training's time in which it waited for its next batch.
        metrics: newest values; None for nan and inf.
        efficiency: share of a step in which the ranks do not wait for each other; None for one rank.
    """

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    section: str | None = None
    rate: float | None = None
    unit: str = "samples"
    seconds_left: float | None = None
    moved: float | None = None
    data_wait: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    efficiency: float | None = None


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes:
        id: name of the folder.
        state: one word; empty where it is not known.
        written: what run.json says.
        where: the jobs and their cluster, or the process and its host.
        jobs: their ids, oldest first.
        pending: why its job waits; None if it does not.
        ended: how Slurm says that its newest job ended; None if it ended well, or Slurm does not know.
        hosts: the nodes of the newest attempt.
        nodes: what the side process of each node has measured last, by host.
        verdicts: what a person should know of it, see `monitor/verdicts.py`.
        attempts: how often it was started.
        steps_lost: steps that were trained twice after resumes.
        resumed: both in words; empty for a run that was never resumed.
        logs: of the newest job, as far as they exist.
        rows: what features add, by title.
        tensorboard: url and tunnel of the one that is served, if one is.
        dashboard: the same of `monitor.dashboard`.
        overrides: what was typed for it, by key.
        next: commands worth typing, as typed here.
        why: why it never began, of one that was to follow another; else Slurm's reason for its end, if its log has none.
        trouble: why nothing is known of it.
    """

    id: str
    path: Path
    state: str = ""
    written: str = "nothing"
    where: str = ""
    jobs: tuple[str, ...] = ()
    pending: Pending | None = None
    ended: Ended | None = None
    framework: str | None = None
    strategy: str | None = None
    cluster: str | None = None
    world_size: int | None = None
    hosts: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    verdicts: tuple[str, ...] = ()
    attempts: int = 0
    steps_lost: int = 0
    resumed: str = ""
    logs: tuple[Path, ...] = ()
    rows: dict[str, str] = field(default_factory=dict)
    tensorboard: dict[str, str] | None = None
    dashboard: dict[str, str] | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    why: str = ""
    trouble: str = ""

    @property
    def alive(self) -> bool:
        """Whether it may still train; where the scheduler is silent, by what run.json says."""
        return may_train(self.state, self.written)


def may_train(state: str, written: str) -> bool:
    """Whether a run in a state may still train; an empty one is not known."""
    return (state or written) not in OVER


def differing(reports: list[Report]) -> list[str]:
    """The keys whose values differ between the members of a sweep."""
    keys = dict.fromkeys(key for report in reports for key in report.overrides)
    return [key for key in keys if len({report.overrides.get(key) for report in reports}) > 1]
