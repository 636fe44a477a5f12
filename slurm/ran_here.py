"""Runs of this machine, of which no scheduler knows: what jobs.py says of them instead."""

import shlex
from typing import Any

from slurm.runs import Submitted
from src.runs import lock
from src.runs.summary import display_path, train_command


def state(run: Submitted) -> tuple[str, str, dict[str, Any]]:
    """One word for where the run stands, who trains in it (empty: nobody, as far as is known), and its run.json.

    Raises:
        CheckpointError: run.json is damaged.
    """
    info = run.run.info()
    word = str(info.get("state", "lost"))
    holder = lock.read(run.run.path / "lock")
    if word not in ("queued", "running"):
        return word, "", info
    if holder is None or (_is_here(holder) and lock.started(holder["pid"]) != holder["started"]):
        return "lost", "", info  # its process had no time to write its end
    return word, f"process {holder['pid']} on {holder['host']}", info


def how_to_stop(run: Submitted) -> str:
    """What `cancel` says."""
    _, who, info = state(run)
    if not who:
        return f"{run.run.id} ran on this machine and is {info.get('state', 'not started')}: there is nothing to cancel."
    pid = who.split()[1]
    return f"{run.run.id} runs as {who}, not as a job: stop it there with `kill {pid}`, and it saves a checkpoint first."


def how_to_go_on(run: Submitted) -> str:
    """What `resubmit` says of a run that has no batch script."""
    why = "ran on this machine" if run.scheduler is None else "has no batch script any more"
    return f"{run.run.id} {why}; go on with `{train_command()} resume={shlex.quote(display_path(run.run.path))}`."


def _is_here(holder: dict[str, Any]) -> bool:
    return bool(holder["host"] == lock.identity()["host"])
