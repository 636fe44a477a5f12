"""The data of one run that `src/jobs.py status` shows, and the states of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_anywhere.runs.facts import Checkpoint, Progress
from train_anywhere.slurm.scheduler.queue import ENDED
from train_anywhere.slurm.status.sources.job_end import JobEnd, PendingJob

OVER = {state.lower() for state in ENDED} | {"lost", "unknown", "nothing", "interrupted"}
"""States of a run that will not train again by itself; in all other states it may. "nothing": run.json has no state."""

STATES = OVER | {
    "queued", "starting", "running", "preempted", "pending", "configuring", "completing", "requeued", "requeue_hold",
    "requeue_fed", "resizing", "signaling", "special_exit", "stage_out", "stopped", "suspended",
}  # fmt: skip
"""All states that a run may have: its own, and those of jobs at https://slurm.schedmd.com/squeue.html."""

FAILED = ("failed", "lost", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline")
"""States of a run that ended with a failure; cancelled runs are not failures."""


@dataclass(frozen=True)
class Report:
    """The report of one run.

    Attributes:
        id: name of the run folder.
        name: the `name` of the run, which its folder is in.
        state: state in one word; empty if not known.
        written: state in run.json; "nothing" if it has none.
        where: the jobs and their cluster, or the process and its host.
        jobs: ids of the jobs, oldest first.
        pending: why the newest job waits in the queue; None if it does not wait.
        ended: how the newest job failed according to Slurm; None if it did not fail, or Slurm does not know.
        hosts: hostnames of the nodes of the newest attempt.
        nodes: newest data of the monitor process on each node, by host; empty if the run has ended.
        verdicts: warnings about the run, see `monitor/verdicts.py`.
        attempts: number of times that the run was started.
        steps_lost: optimizer steps that were trained again after resumes, or will be.
        resumed: attempts and lost steps in words; empty for a run that was never resumed and has lost nothing.
        logs: log files of the newest job that has any.
        rows: extra lines that features add to the report, by title.
        tensorboard: URL and tunnel command of the run's TensorBoard; None if it serves none.
        dashboard: URL and tunnel command of `monitor.dashboard`; None if it is off.
        overrides: overrides of the run, by key.
        next: commands that the user may want to type next.
        started: start of the first attempt, in unix seconds.
        took: seconds from the start to the end, or until now; None if the end was not recorded.
        best: the monitored metric and its best value so far.
        why: why the run never started, failed, lost its job, or was ended early by user code; empty if that is not known.
        trouble: why the run folder can't be read; else empty.
    """

    id: str
    path: Path
    name: str = ""
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
    started: float | None = None
    took: float | None = None
    best: tuple[str, float] | None = None
    why: str = ""
    trouble: str = ""

    @property
    def alive(self) -> bool:
        """True if the run may still train; if the scheduler does not answer, run.json decides."""
        return may_train(self.state, self.written)


def may_train(state: str, written: str) -> bool:
    """Return whether a run may still train. `written`, the state in run.json, counts if `state` is empty (not known)."""
    return (state or written) not in OVER


def differing_keys(reports: list[Report]) -> list[str]:
    """Return the keys whose values differ between the members of a sweep."""
    keys = dict.fromkeys(key for report in reports for key in report.overrides)
    return [key for key in keys if len({report.overrides.get(key) for report in reports}) > 1]
