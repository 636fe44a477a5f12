"""Report runs of this machine, and check whose jobs a run folder names."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from train_anywhere.errors import SubmitError
from train_anywhere.runs import lock
from train_anywhere.runs.attempts import describe_state
from train_anywhere.runs.reopen.trust import is_recorded
from train_anywhere.runs.summary import is_program, resume_command
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.status.find_runs import RunEntry

STARTING_S = 120.0
"""Seconds within which a run that no process trains yet counts as starting."""


def read_state(run: RunEntry) -> tuple[str, str, dict[str, Any]]:
    """Return the state of the run, its process, and its run.json. Raises CheckpointError if that is damaged."""
    info = run.folder.read_info()
    word = describe_state(str(info.get("state", "lost")), info)
    holder = lock.read_holder(run.folder.path / "lock")
    if word not in ("queued", "running", "lost"):
        return word, "", info
    if word != "running" and holder is None:
        with suppress(OSError):  # started or resumed a moment ago
            if time.time() - run.folder.config.stat().st_mtime < STARTING_S:
                return "starting", "", info
    here = holder is not None and holder["host"] == lock.identity()["host"]
    if holder is None or (here and lock.process_start(holder["pid"]) != holder["started"]):
        return "lost", "", info  # its process had no time to record its end
    return word, f"process {holder['pid']} on {holder['host']}", info


def training_pid(run: RunEntry) -> int | None:
    """Return the id of the process that trains here. None if it is not on this machine."""
    holder = lock.read_holder(run.folder.path / "lock")
    if holder is None or holder["host"] != lock.identity()["host"]:
        return None
    return int(holder["pid"]) if lock.process_start(holder["pid"]) == holder["started"] else None


def stop(run: RunEntry) -> str:
    """Ask the process that trains in a run folder to save and stop, and return a message.

    Raises SubmitError: there is none, it is on another machine, or it is another user's.
    """
    word, who, _ = read_state(run)
    if word == "starting":
        raise SubmitError(f"{run.folder.id} is starting on this machine: try again in a moment.")
    if not who:
        raise SubmitError(f"{run.folder.id} ran on this machine and is {word}: there is nothing to cancel.")
    elsewhere = f"{run.folder.id} runs as {who}: stop it there with `kill {who.split()[1]}`, and it saves a checkpoint first."
    pid = training_pid(run)
    try:
        # a run folder of another user may name any process
        if pid is None or (run.folder.path / "lock").lstat().st_uid != os.getuid():
            raise SubmitError(elsewhere)
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise SubmitError(f"{elsewhere} ({error.strerror})") from None
    does = "asks the program to stop" if is_program(run.folder) else "saves a checkpoint and stops"
    return f"{run.folder.id}: process {pid} {does}."


def resume_message(run: RunEntry) -> str:
    """Return the message of `resubmit` for a run without a batch script."""
    why = "ran on this machine" if run.scheduler is None else "no longer has a batch script"
    return f"{run.folder.id} {why}; resume it with `{resume_command(run.folder)}`."


def refuse_other_jobs(
    run: RunEntry, job_ids: Sequence[str], consequence: str = "nothing was cancelled", command: str = ""
) -> None:
    """Refuse jobs not submitted from the run folder, unless recorded by this user.

    The message says with `consequence` what was not done, and with `command` how to do it, by default with the scheduler's cancel command.

    Raises SubmitError: jobs.txt names such a job. Raises SchedulerError: the scheduler does not answer.
    """
    above, base = os.path.realpath(run.folder.path.parent), (run.script or run.folder.config).parent.name
    own = {os.path.realpath(run.folder.path), os.path.join(above, base)}  # a sweep's members share a script
    if run.scheduler == "slurm":
        known = queue.query_scripts(queue.jobs_option(job_ids))
        scripts = {job_id: script for job_id, (_, script) in known.items() if job_id in job_ids}
    else:  # on PBS the output file, which is in the same folder
        paths = {i: queue.query_pbs_fields(i).get("Output_Path", "").partition("/")[2] for i in job_ids}
        scripts = {job_id: f"/{path}" for job_id, path in paths.items() if path}
    for job_id, script in scripts.items():
        inside = os.path.realpath(os.path.dirname(script)) in own
        if not inside and not is_recorded(run.folder.path, "job", job_id):
            name = queue.CANCEL[str(run.scheduler)]
            raise SubmitError(
                f"job {job_id} in {run.folder.jobs} was not submitted from that folder but as {script!r}, so {consequence}; "
                f"if you mean that job, use `{command or name} {queue.native_id(job_id)}`."
            )
