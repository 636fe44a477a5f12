"""Report runs of this machine, which no scheduler knows."""

import shlex
from typing import Any

from train_anywhere.runs import lock
from train_anywhere.runs.summary import display_path, train_command
from train_anywhere.slurm.status.find_runs import RunEntry


def read_state(run: RunEntry) -> tuple[str, str, dict[str, Any]]:
    """Return the state of the run in one word, its training process (empty if none is known), and its run.json.

    Raises:
        CheckpointError: run.json is damaged.
    """
    info = run.folder.read_info()
    word = str(info.get("state", "lost"))
    holder = lock.read_holder(run.folder.path / "lock")
    if word not in ("queued", "running"):
        return word, "", info
    if holder is None or (_is_here(holder) and lock.process_start(holder["pid"]) != holder["started"]):
        return "lost", "", info  # its process had no time to record its end
    return word, f"process {holder['pid']} on {holder['host']}", info


def training_pid(run: RunEntry) -> int | None:
    """Return the id of the process that trains in the run folder; None if it is not on this machine."""
    holder = lock.read_holder(run.folder.path / "lock")
    here = holder is not None and _is_here(holder) and lock.process_start(holder["pid"]) == holder["started"]
    return int(holder["pid"]) if holder and here else None


def stop_message(run: RunEntry) -> str:
    """Return the message of `cancel`."""
    _, who, info = read_state(run)
    if not who:
        return f"{run.folder.id} ran on this machine and is {info.get('state', 'not started')}: there is nothing to cancel."
    pid = who.split()[1]
    return f"{run.folder.id} runs as {who}, not as a job: stop it there with `kill {pid}`, and it saves a checkpoint first."


def resume_message(run: RunEntry) -> str:
    """Return the message of `resubmit` for a run without a batch script."""
    why = "ran on this machine" if run.scheduler is None else "no longer has a batch script"
    return f"{run.folder.id} {why}; resume it with `{train_command()} resume={shlex.quote(display_path(run.folder.path))}`."


def _is_here(holder: dict[str, Any]) -> bool:
    return bool(holder["host"] == lock.identity()["host"])
