"""`after=RUN`: a job that begins when a run, or each member of a sweep, is complete; and why it never began."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.features.feature import Followed
from train_anywhere.files import ROOT
from train_anywhere.runs.folder import ATTEMPTS
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.find_runs import Submitted

KEY = "after"
"""Key of run.json: the run or sweep that this one waits for."""

ENDS = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "preempted": "was stopped before its end",
    "completed": "is complete, but its job ended with an error code (a loss that is no number?)",
}
"""States of a run that ended, as the end of a sentence."""


def follow(after: str, scheduler: str, results: Path) -> Followed:
    """The jobs that must end well before a job of the same scheduler begins.

    Args:
        after: a run or a sweep, by its folder or its id.
        results: where runs are looked for by their id.

    Raises:
        ConfigError: there is no such run, or it will not become complete by itself; with what to do first.
        SchedulerError: where its jobs stand can't be asked.
    """
    try:
        found, known = find_runs.ask(find_runs.find(_named(after), results))
    except ProjectError as error:
        raise type(error)(f"after={_named(after)}: {error}") from None
    wanted, problems = [], []
    for run in found:
        try:
            wanted += _last_job(run, known, scheduler)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    first = found[0].folder.path
    path = first if len(found) == 1 else first.with_name(first.name.rpartition("-")[0])
    return Followed(str(path), _short(found, wanted))


def _named(after: str) -> str:
    """An id of a run is read as a path below the project, where there is none."""
    path = Path(after)
    return path.name if path.parent == ROOT and not path.exists() else after


def _last_job(run: Submitted, known: queue.JobStates, scheduler: str) -> list[str]:
    """The job after which the run will be complete; none if it is."""
    name = f"after={display_path(run.folder.path)}"
    if run.trouble:
        raise ConfigError(f"{name}: {run.trouble}")
    state = find_runs.state(run, known)[0] if run.scheduler else str(run.folder.info().get("state"))
    if state == "completed" and not known.living(run.job_ids):
        return []
    if run.scheduler is None:
        raise ConfigError(
            f"{name}: that run is {state} and has no job, so none can wait for it; submit this one when it is complete."
        )
    if run.scheduler != scheduler:
        raise ConfigError(f"{name}: that run is one of {run.scheduler}, and this job one of {scheduler}.")
    living = [i for i in run.job_ids if known.living([i])]
    if not living:
        raise ConfigError(
            f"{name}: that run {_ended(state)}, so a job that waits for it would never begin; resume it first, or leave after= out."
        )
    return living[-1:]  # the last of a chain


def _ended(state: str) -> str:
    return ENDS.get(state, f"is {state}")


def _short(found: Sequence[Submitted], wanted: Sequence[str]) -> tuple[str, ...]:
    """A whole array by its number: all its members in one word."""
    arrays = {i.partition("_")[0] for run in found for i in run.job_ids}
    once = all(len(run.job_ids) == 1 for run in found)
    return (arrays.pop(),) if len(wanted) > 1 and once and len(arrays) == 1 else tuple(wanted)


def why(run: Submitted, info: Mapping[str, Any]) -> str:
    """Why a job that was to follow a run never began; empty for one that did, or that follows none that ended badly."""
    if not info.get(KEY) or info.get(ATTEMPTS):
        return ""
    with suppress(ProjectError):
        found, known = find_runs.ask(find_runs.find(str(info[KEY]), run.folder.path.parent.parent))
        for other in found:
            state, its_own = find_runs.state(other, known)
            if _ended_badly(other, state, known):
                because = why(other, its_own) if state == "cancelled" else ""
                return f"run {other.folder.id} that it was to follow {_ended(state)}{because and ': '}{because or '.'}"
    return ""


def _ended_badly(run: Submitted, state: str, known: queue.JobStates) -> bool:
    if state == "completed":  # with a loss that is nan the job's exit code is not 0
        return "FAILED" in known.of(run.job_ids[-1:]).values()
    return state in ENDS or state.upper() in queue.ENDED


def settle(run: Submitted, state: str, info: Mapping[str, Any]) -> str:
    """The same of a run whose job has left the queue; run.json, which nobody else writes any more, then says so too."""
    if state == "cancelled" and info.get("state") == "preempted":  # Slurm forgets it soon
        with suppress(OSError):
            run.folder.update(state="cancelled")
    if state == "cancelled" and info.get("why"):  # a trial that was stopped
        return str(info["why"])
    if state in ("completed", "") or not (because := why(run, info)):
        return ""
    if info.get("state") == "queued":
        with suppress(OSError):
            run.folder.update(state="cancelled")
    return because
