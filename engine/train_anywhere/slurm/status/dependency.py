"""Resolve `after=RUN` to the jobs to wait for, and explain why a job never started."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.runs.folder import ATTEMPTS, sweep_folder
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.client import QUEUE
from train_anywhere.slurm.status import find_runs

ENDS = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "preempted": "was stopped before its end",
    "completed": "is complete, but its job failed (loss not finite?)",
}
"""States of a run that ended, each as the end of a sentence."""


def find_dependency(after: str | None, scheduler: str, results: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the folder of the run or sweep that a job waits for, and its jobs that must succeed first.

    `after` is its folder or id; None: the job waits for none. The jobs are those of the same scheduler that are not complete yet.

    Raises ConfigError: the run does not exist, or will not complete by itself; the message says what to do first. Raises
    SchedulerError: the scheduler does not report the state of the jobs.
    """
    if after is None:
        return None, ()
    after = find_runs.strip_root(after)
    try:
        found, known = find_runs.query_scheduler(find_runs.find(after, results), wait=True)
    except ProjectError as error:
        raise type(error)(f"after={after}: {error}") from None
    job_ids, problems = [], []
    for run in found:
        try:
            job_ids += _last_job(run, known, scheduler)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    arrays = {i.partition("_")[0] for run in found for i in run.job_ids}
    once = all(len(run.job_ids) == 1 for run in found)
    if len(job_ids) > 1 and once and len(arrays) == 1:  # all the members of one array
        job_ids = [*arrays]
    path = sweep_folder(found[0].folder) if len(found) > 1 else found[0].folder.path
    return str(path), tuple(job_ids)


def _last_job(run: find_runs.RunEntry, known: queue.JobStates, scheduler: str) -> list[str]:
    """Return a list with the job that completes the run. Empty if it is complete."""
    name = f"after={display_path(run.folder.path)}"
    if run.trouble:
        raise ConfigError(f"{name}: {run.trouble}")
    state = find_runs.read_state(run, known)[0]
    if state == "completed" and not known.active(run.job_ids):
        return []
    if run.scheduler is None:
        raise ConfigError(f"{name}: that run is {state} and has no job; submit this one when it is complete.")
    if run.scheduler != scheduler:
        raise ConfigError(
            f"{name}: a job of {scheduler} can't wait for that run, a job of {run.scheduler}; submit this one when it is complete."
        )
    living = [i for i in run.job_ids if known.active([i])]
    if not living and run.unclear:
        raise ConfigError(
            f"{name}: whether a job of that run is queued is not known yet; look at `{QUEUE[scheduler]}`, and type the command again."
        )
    if not living:
        end = ENDS.get(state, f"is {state}")
        raise ConfigError(
            f"{name}: that run {end}, so a job that waits for it would never start; resume it first, or leave after= out."
        )
    return living[-1:]  # the last of a chain


def explain_cancel(run: find_runs.RunEntry, info: Mapping[str, Any]) -> str:
    """Return which failed run kept a waiting job from starting. Empty if none did."""
    if not info.get("after") or info.get(ATTEMPTS):
        return ""
    with suppress(ProjectError):
        runs = find_runs.find(str(info["after"]), run.folder.path.parent.parent)
        found, known = find_runs.query_scheduler(runs)
        for other in found:
            state, _, its_own = find_runs.read_state(other, known)
            failed = state in ENDS or state.upper() in queue.ENDED
            if state == "completed":  # if the loss is nan, the run completes, but its job fails
                failed = "FAILED" in known.select(other.job_ids[-1:]).values()
            if failed:
                because = explain_cancel(other, its_own) if state == "cancelled" else ""
                end = ENDS.get(state, f"is {state}")
                return f"run {other.folder.id}, which it waited for, {end}{because and ': '}{because or '.'}"
    return ""


def settle_state(run: find_runs.RunEntry, state: str, info: Mapping[str, Any]) -> str:
    """Return why a run never started, and record it as cancelled in run.json."""
    because = ""
    if state == "cancelled" and info.get("why"):  # a trial that was stopped
        because = str(info["why"])
    elif not run.unclear and state not in ("completed", ""):
        because = explain_cancel(run, info)
    # Slurm soon forgets the job, and no other process writes this run.json any more
    cancelled = state == "cancelled" and info.get("state") == "preempted"
    if cancelled or (because and info.get("state") == "queued"):
        with suppress(OSError):
            run.folder.update(state="cancelled")
    return because
