"""The report of one run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_anywhere.slurm.scheduler.queue import ENDED
from train_anywhere.slurm.status.sources.job_end import JobEnd
from train_anywhere.slurm.status.sources.pending import PendingJob

OVER = {state.lower() for state in ENDED} | {"lost", "unknown", "nothing"}
"""States of a run that will not train again by itself. In any other state of Slurm a job may still run."""

FAILED = ("failed", "lost", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline")
"""States of a run that failed without being cancelled."""


@dataclass(frozen=True)
class Checkpoint:
    """The newest complete checkpoint of a run.

    Attributes:
        age: seconds since it was completed.
    """

    step: int
    path: Path
    age: float


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        epoch: the current epoch, from 1; for a run that has ended, the completed epochs.
        step: optimizer steps done.
        section: train, validation, test, checkpoint ...; None if not known.
        rate: training throughput, in `unit` per second.
        seconds_left: estimated seconds until the last step, at the average pace so far.
        moved: seconds since the last progress.
        data_wait: share of the training time spent waiting for the next batch.
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
    """The report of one run.

    Attributes:
        id: name of the run folder.
        state: state in one word; empty if not known.
        written: state in run.json.
        where: the jobs and their cluster, or the process and its host.
        jobs: ids of the jobs, oldest first.
        pending: why the newest job waits; None if it does not.
        ended: how the newest job ended according to Slurm; None if it ended normally, or Slurm does not know.
        hosts: the nodes of the newest attempt.
        nodes: the newest sample of each node, by host.
        verdicts: warnings about the run, see `monitor/verdicts.py`.
        attempts: number of starts.
        steps_lost: steps that were trained again after resumes.
        resumed: attempts and lost steps as a phrase; empty for a run that was never resumed.
        logs: logs of the newest job, as far as they exist.
        rows: rows of features, by title.
        tensorboard: url and tunnel command of the run's TensorBoard, if it serves one.
        dashboard: the same for `monitor.dashboard`.
        overrides: overrides of the run, by key.
        next: suggested commands.
        why: why a run with after= never started, or why its job ended if the log does not show it.
        trouble: why the run can't be read.
    """

    id: str
    path: Path
    state: str = ""
    written: str = "nothing"
    where: str = ""
    jobs: tuple[str, ...] = ()
    pending: PendingJob | None = None
    ended: JobEnd | None = None
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
        """True if the run may still train; decided by run.json if the scheduler does not answer."""
        return may_train(self.state, self.written)


def may_train(state: str, written: str) -> bool:
    """Return whether a run in a state may still train; an empty `state` is not known."""
    return (state or written) not in OVER


def differing_keys(reports: list[Report]) -> list[str]:
    """Return the keys whose values differ between the members of a sweep."""
    keys = dict.fromkeys(key for report in reports for key in report.overrides)
    return [key for key in keys if len({report.overrides.get(key) for report in reports}) > 1]
