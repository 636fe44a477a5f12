"""Gather the reports of runs: query the scheduler once, then read the files of each run. Sum their GPU hours and energy."""

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train_anywhere import features
from train_anywhere.errors import CheckpointError, ProjectError, SchedulerError, SubmitError
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.run_facts import node_use, read_facts
from train_anywhere.monitor.verdicts import goodput
from train_anywhere.runs import facts
from train_anywhere.runs.attempts import extend_newest, recorded_reason
from train_anywhere.runs.facts import RecordedCheckpoint, RecordedProgress
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.summary import display_path, is_program, resume_command, train_command
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.client import QUEUE
from train_anywhere.slurm.scheduler.queue import ENDED, JobStates, PendingJob
from train_anywhere.slurm.status import find_runs, job_end
from train_anywhere.slurm.status.best import best_so_far
from train_anywhere.slurm.status.dependency import settle_state
from train_anywhere.slurm.status.find_runs import RunEntry, jobs_command
from train_anywhere.slurm.status.job_end import WAITING, JobEnd

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
        state: state in one word; empty if not known.
        written: state in run.json; "nothing" if it has none.
        where: the jobs and their cluster, or the process and its host.
        pending: why the newest job waits in the queue; None if it does not wait.
        ended: how the newest job failed according to Slurm; None if it did not fail, or Slurm does not know.
        nodes: newest data of the monitor process on each node, by host; empty if the run has ended.
        verdicts: warnings about the run, see `monitor/verdicts.py`.
        steps_lost: optimizer steps that were trained again after resumes, or will be.
        resumed: attempts and lost steps in words; empty for a run that was never resumed and has lost nothing.
        logs: log files of the newest job that has any.
        tensorboard, dashboard: URL and tunnel command; None if it serves none.
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
    progress: RecordedProgress = field(default_factory=RecordedProgress)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoint: RecordedCheckpoint | None = None
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
        """True if the run may still train. Without an answer, run.json decides."""
        return (self.state or self.written) not in OVER


def differing_keys(reports: list[Report]) -> list[str]:
    """Return the keys whose values differ between the members of a sweep."""
    keys = dict.fromkeys(key for report in reports for key in report.overrides)
    return [key for key in keys if len({report.overrides.get(key) for report in reports}) > 1]


def release_command(scheduler: str | None, held: Sequence[str]) -> tuple[str, ...]:
    """Return the command that lets held jobs start. Empty if no job is held."""
    if scheduler == "pbs" and held:
        return (f"qrls {shlex.join(map(queue.native_id, held))}",)
    return (f"scontrol release {','.join(held)}",) if held else ()


def run_commands(run: RunEntry, state: str, alive: bool, waits: PendingJob | None = None) -> tuple[str, ...]:
    """Return the commands that fit the state of a run."""
    path, results = shlex.quote(display_path(run.folder.path)), run.folder.path.parent.parent
    if alive and run.scheduler is None:
        return (jobs_command("cancel", run.folder.id, results),) if find_runs.find_process(run)[1] else ()
    if alive:
        shown = (jobs_command(verb, run.folder.id, results) for verb in ("logs -f", "cancel"))
        held = run.job_ids[-1:] if waits and waits.is_held else ()
        return (*release_command(run.scheduler, held), *shown)
    if state == "completed" and is_program(run.folder):
        return ()
    if state == "completed":
        return (f"{train_command('evaluate.py')} {path}",)
    logs = (jobs_command("logs", run.folder.id, results),) if run.logs() else ()
    if run.unclear:
        return (*logs, QUEUE[str(run.scheduler)], jobs_command("status", run.folder.id, results))
    if run.script is None:
        return (*logs, resume_command(run.folder))
    return (*logs, jobs_command("resubmit", run.folder.id, results))


def sweep_commands(sweep: str, scheduler: str | None, reports: Sequence[Report]) -> tuple[str, ...]:
    """Return the commands that fit the states of the members of a sweep."""
    results = reports[0].path.parent.parent
    alive = any(report.alive for report in reports)
    verbs = ["logs -f", "cancel"] if alive else ["best"]
    verbs += ["resubmit --failed"] if any(report.state in FAILED for report in reports) else []
    held = [report.jobs[-1] for report in reports if report.pending and report.pending.is_held]
    return (*release_command(scheduler, held), *(jobs_command(verb, sweep, results) for verb in verbs))


@dataclass(frozen=True)
class RunReports:
    """The reports of several runs.

    Attributes:
        next: suggested commands for all runs, if they are the members of one sweep.
        notes: minor failures, such as an accounting that does not answer.
        trouble: failures: the scheduler does not answer, or a run can't be read.
    """

    reports: list[Report]
    next: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    code: int = 0


def gather(found: Sequence[RunEntry], ended_too: bool = True, brief: bool = False) -> RunReports:
    """Return the reports of runs. `ended_too` queries the scheduler also for ended runs.

    A `brief` report has what `list` shows: thousands of runs are read.
    """
    continues = ("queued", "running", "preempted")
    by_job = [run for run in found if run.scheduler]
    queried = [run for run in by_job if ended_too or run.folder.read_state() in continues]
    known: JobStates | None = None
    ends: dict[str, JobEnd] = {}
    trouble, code = [], 0
    try:
        with_jobs, known = find_runs.query_scheduler(queried)
        newer = {run.folder.path: run for run in with_jobs}
        found = [newer.get(run.folder.path, run) for run in found]
        ends = job_end.query_newest_ends(queried, known)
    except SchedulerError as error:
        trouble, code = [f"the states of jobs are not known: {error}"], error.exit_code
    reports = []
    for run in found:
        try:
            reports.append(make_report(run, known, ends, len(found) == 1, brief))
        except ProjectError as error:
            path = run.folder.path
            reports.append(Report(run.folder.id, path, path.parent.name, trouble=str(error)))
            trouble, code = [*trouble, f"{run.folder.id}: {error}"], error.exit_code
    gap = f"the end of jobs that left the queue is not known: {known.gap}" if known and known.gap else ""
    sweeps = {run.folder.id.rpartition("-")[0] for run in found}
    one_sweep = len(found) > 1 and len(sweeps) == 1 and found[0].member is not None
    next_ = sweep_commands(sweeps.pop(), found[0].scheduler, reports) if one_sweep else ()
    return RunReports(reports, next_, (gap,) if gap else (), tuple(trouble), code)


def make_report(
    run: RunEntry, known: JobStates | None, ends: Mapping[str, JobEnd], in_full: bool, brief: bool = False
) -> Report:
    """Return the report of one run. `in_full` reads all its files, `brief` only the small ones that `list` needs.

    `known` is None if the scheduler does not answer; `ends` are by job id.

    Raises SubmitError, CheckpointError: jobs.txt or run.json is damaged.
    """
    if run.trouble:
        raise SubmitError(run.trouble)
    state, where, info = find_runs.read_state(run, known)
    written = str(info.get("state", "nothing"))
    alive = (state or written) not in OVER
    held_up = [i for i in run.job_ids if known and known.states.get(i, "").lower() in WAITING]
    waits = known.waits.get(held_up[0]) if known and held_up and state in WAITING else None
    end = None if alive or written in ("completed", "preempted") else ends.get(("", *run.job_ids)[-1])
    report = Report(
        id=run.folder.id,
        path=run.folder.path,
        name=run.folder.path.parent.name,
        state=state,
        written=written,
        where=where or "on this machine",
        jobs=run.job_ids,
        pending=waits,
        ended=end,
        **_recorded(run.folder, info, alive),
        **_monitored(run.folder, info, alive, in_full),
    )
    if brief:
        return report
    why = ""
    if not alive:
        why = settle_state(run, state, info) or job_end.explain(run, end)
        why = why or job_end.explain_start_failure(run, info) or recorded_reason(info)
        why = why or info.get("ended_by") or ""
    return replace(
        report,
        checkpoint=facts.find_checkpoint(run.folder),
        steps_lost=facts.lost_steps(run.folder, info, alive),
        resumed=facts.resume_summary(run.folder, info, alive),
        logs=tuple(run.logs()),
        next=run_commands(run, state, alive, waits),
        why=why,
    )


def _recorded(run: RunDir, info: Mapping[str, Any], alive: bool) -> dict[str, Any]:
    """Return the fields of a report that run.json, overrides.txt and metrics.csv have."""
    started, ended = (facts.moment(info.get(key)) for key in ("started", "ended"))
    end = time.time() if alive else ended
    return {
        **{name: info.get(name) for name in ("framework", "strategy", "cluster", "world_size")},
        "hosts": tuple(h for h in info.get("hosts") or () if isinstance(h, str)),
        "attempts": len(info.get(ATTEMPTS) or ()),
        "started": started,
        "took": end - started if started and end else None,
        "best": best_so_far(run, info),
        "progress": facts.read_progress(run, info),
        "overrides": facts.read_overrides(run),
    }


def _monitored(run: RunDir, info: Mapping[str, Any], alive: bool, in_full: bool) -> dict[str, Any]:
    """Return the fields of a report that the monitor and the features know."""
    nodes = facts.read_nodes(run, info) if alive else {}
    known: dict[str, Any] = {
        "nodes": {host: {k: v for k, v in content.items() if k != "sums"} for host, content in nodes.items()}
    }
    if alive:
        for kind in ("tensorboard", "dashboard"):
            served = read_json(run.monitor / f"{kind}.json")
            known[kind] = {k: v for k, v in served.items() if isinstance(v, str)} or None
    if in_full:
        verdicts, known["rows"] = features.describe(read_facts(run, 0, nodes))
        known["verdicts"] = tuple(verdicts)
    return known


@dataclass(frozen=True)
class Cost:
    """The cost of some runs. `kwh` is the energy of their GPUs, None if none was sampled."""

    name: str
    user: str
    runs: int
    gpu_hours: float
    kwh: float | None


def read_cost(run: RunDir) -> Cost:
    """Return the cost of one run so far. Raises CheckpointError, OSError."""
    info = run.read_info()
    started, ended = facts.moment(info.get("started")), facts.moment(info.get("ended"))
    measured = goodput(extend_newest(run, info))
    seconds = measured.whole if measured else max(0.0, (ended or 0.0) - (started or 0.0)) if ended else 0.0
    gpus = facts.number(info.get("gpus")) or 0.0
    nodes = [node for path in sorted(run.monitor.glob("*.csv")) if (node := node_use(path, False, None))]
    joules = [gpu.power.total * node.every for node in nodes for gpu in node.gpus if gpu.power]
    # of a GPU that several members of a sweep share, each has its part
    share = min(1.0, gpus / len(joules)) if joules else 1.0
    user = str(run.path.stat().st_uid)
    with suppress(KeyError):
        user = run.path.owner()
    return Cost(
        run.path.parent.name, user, 1, gpus * seconds / 3600, sum(joules) * share / 3.6e6 if joules else None
    )


def sum_costs(folders: Sequence[Path]) -> list[Cost]:
    """Return the costs by name and user, the most expensive first. Runs that can't be read are left out."""
    found: dict[tuple[str, str], list[Cost]] = {}
    for folder in folders:
        with suppress(CheckpointError, OSError):
            one = read_cost(RunDir(folder))
            found.setdefault((one.name, one.user), []).append(one)
    return sorted(map(total, found.values()), key=lambda cost: (-cost.gpu_hours, cost.name, cost.user))


def total(costs: Sequence[Cost]) -> Cost:
    """Return the sum of costs, with the name and user of the first."""
    known = [cost.kwh for cost in costs if cost.kwh is not None]
    hours, runs = sum(c.gpu_hours for c in costs), sum(c.runs for c in costs)
    return replace(costs[0], runs=runs, gpu_hours=hours, kwh=sum(known) if known else None)
