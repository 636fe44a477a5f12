"""Reports of runs: one question to the scheduler for all of them, then the files of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_anywhere import features
from train_anywhere.errors import ProjectError, SchedulerError, SubmitError
from train_anywhere.monitor.run_facts import read_facts
from train_anywhere.monitor.verdicts import verdicts
from train_anywhere.runs.attempts import lost_steps, resume_summary
from train_anywhere.runs.folder import ATTEMPTS
from train_anywhere.slurm.scheduler.queue import JobStates
from train_anywhere.slurm.status import find_runs, local_runs, next_commands
from train_anywhere.slurm.status.find_runs import Submitted
from train_anywhere.slurm.status.run_status import Report, may_train
from train_anywhere.slurm.status.sources import ended, run_files
from train_anywhere.slurm.status.sources.ended import Ended
from train_anywhere.slurm.status.sources.pending import WAITING, Pending, pending


@dataclass(frozen=True)
class Gathered:
    """What is known of several runs.

    Attributes:
        reports: one for each, in their order.
        next: commands for all of them, where they are the members of a sweep.
        notes: what could not be learnt, and matters little.
        trouble: what could not be learnt: the scheduler's states, a run as a whole.
        code: the exit code that this means.
    """

    reports: list[Report]
    next: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    code: int = 0


def gather(found: Sequence[Submitted], ended_too: bool = True) -> Gathered:
    """Reports of runs.

    Args:
        ended_too: ask the scheduler also for runs that have recorded their end: it may know of a newer job.
    """
    asked = [run for run in found if ended_too or _open(run)]
    known: JobStates | None = None
    waiting: dict[str, Pending] = {}
    ends: dict[str, Ended] = {}
    trouble, code = [], 0
    try:
        with_jobs, known = find_runs.ask(asked)
        newer = {run.folder.path: run for run in with_jobs}
        found = [newer.get(run.folder.path, run) for run in found]
        waiting, ends = _waiting(asked, known), ended.newest(asked, known)
    except SchedulerError as error:
        trouble, code = [f"where jobs stand is not known: {error}"], error.exit_code
    reports = []
    for run in found:
        try:
            reports.append(report(run, known, waiting, ends, len(found) == 1))
        except ProjectError as error:
            reports.append(Report(run.folder.id, run.folder.path, trouble=str(error)))
            trouble, code = [*trouble, f"{run.folder.id}: {error}"], error.exit_code
    gap = f"how jobs ended that left the queue is not known: {known.gap}" if known and known.gap else ""
    sweep = sweep_of(found)
    next_ = next_commands.of_sweep(sweep, reports) if sweep else ()
    return Gathered(reports, next_, (gap,) if gap else (), tuple(trouble), code)


def sweep_of(found: Sequence[Submitted]) -> str | None:
    """The id of the sweep of which all these runs are members; None for one run, or for runs of several."""
    bases = {run.folder.id.rpartition("-")[0] for run in found}
    return bases.pop() if len(found) > 1 and len(bases) == 1 and found[0].member is not None else None


def report(
    run: Submitted,
    known: JobStates | None,
    waiting: Mapping[str, Pending],
    ends: Mapping[str, Ended],
    alone: bool = True,
) -> Report:
    """What is known of one run.

    Args:
        known: the states of jobs; None if the scheduler can't be asked.
        waiting: why jobs wait.
        ends: how jobs ended that ended badly.
        alone: it is the only one that was asked for, so all its files are read.

    Raises:
        SubmitError, CheckpointError: the files that name its jobs and its state are not what this project writes.
    """
    if run.trouble:
        raise SubmitError(run.trouble)
    state, where, info = _state(run, known)
    written = str(info.get("state", "nothing"))
    alive = may_train(state, written)
    waits = next((waiting[i] for i in run.job_ids if i in waiting), None) if state in WAITING else None
    end = None if alive or written in ("completed", "preempted") else ends.get(("", *run.job_ids)[-1])
    return Report(
        id=run.folder.id,
        path=run.folder.path,
        state=state,
        written=written,
        where=where,
        jobs=run.job_ids,
        pending=waits,
        ended=end,
        framework=info.get("framework"),
        strategy=info.get("strategy"),
        cluster=info.get("cluster"),
        world_size=info.get("world_size"),
        hosts=tuple(h for h in info.get("hosts") or () if isinstance(h, str)),
        progress=run_files.progress(run.folder, info),
        nodes=run_files.nodes(run.folder, info) if alive else {},
        verdicts=tuple(verdicts(read_facts(run.folder))) if alone else (),
        checkpoint=run_files.checkpoint(run.folder),
        attempts=len(info.get(ATTEMPTS) or ()),
        steps_lost=lost_steps(info),
        resumed=resume_summary(info),
        logs=tuple(run.logs()),
        rows=features.rows(run.folder, info) if alone else {},
        tensorboard=_served(info, "tensorboard") if alive else None,
        dashboard=_served(info, "dashboard") if alive else None,
        overrides=run_files.overrides(run.folder),
        next=next_commands.of_run(run, state, alive, waits),
        why="" if alive else features.why(run, state, info) or ended.why(run, end),
    )


def _state(run: Submitted, known: JobStates | None) -> tuple[str, str, dict[str, Any]]:
    """One word (empty: not known), where the run is, and its run.json."""
    if run.scheduler is None:
        state, where, info = local_runs.state(run)
        return state, where or "on this machine", info
    state, info = find_runs.state(run, known) if known else ("", run.folder.info())
    jobs = [*run.job_ids, *(["?"] if run.unclear or not run.job_ids else [])]
    return state, f"job {' -> '.join(jobs)} on {info.get('cluster')}", info


def _open(run: Submitted) -> bool:
    """Whether the run has not recorded its end, or one after which its job may train again."""
    try:
        return run.folder.info().get("state") in ("queued", "running", "preempted")
    except ProjectError:
        return False


def _waiting(found: Sequence[Submitted], known: JobStates) -> dict[str, Pending]:
    said: dict[str, Pending] = {}
    for kind in {run.scheduler for run in found if run.scheduler}:
        jobs = [i for run in found if run.scheduler == kind for i in run.job_ids]
        said |= pending(kind, [i for i in jobs if known.of([i]).get(i, "").lower() in WAITING])
    return said


def _served(info: Mapping[str, Any], kind: str) -> dict[str, str] | None:
    said = info.get(kind)
    texts = {k: v for k, v in said.items() if isinstance(v, str)} if isinstance(said, dict) else {}
    return texts or None
