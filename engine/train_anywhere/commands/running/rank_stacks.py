"""`jobs.py debug`: print where the ranks of a run are, as stack traces of all their threads."""

import time
from contextlib import suppress

from train_anywhere.commands.running.checkpoint_now import send_request
from train_anywhere.commands.running.job_shell import find_job
from train_anywhere.errors import CheckpointError, SubmitError
from train_anywhere.files.plain_json import read_json
from train_anywhere.monitor import requests
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.slurm.status.find_runs import RunEntry

ANSWER_S = 45.0
"""Seconds for the monitors of all nodes to answer: they look for requests every few seconds, and py-spy takes up to 10."""

POLL_S = 0.25


def debug(run: RunEntry, rank: int | None) -> None:
    """Print the stacks of all ranks, or of one. Raises SubmitError, SchedulerError."""
    find_job(run, "print its stacks")
    info = run.folder.read_info()
    size = max(1, info.get("world_size") or 1)
    if rank is not None and rank >= size:
        raise SubmitError(f"it has no rank {rank}: its ranks are 0-{size - 1}.")
    wanted = set(range(size)) if rank is None else {rank}
    found = _collect(run, wanted)
    for number in sorted(wanted & found.keys()):
        print(f"---- {run.folder.id}: {found[number].rstrip()}\n")
    if missing := sorted(wanted - found.keys()):
        raise SubmitError(_explain_missing(run, missing))


def _collect(run: RunEntry, wanted: set[int]) -> dict[int, str]:
    """Return the stacks that the monitor processes of the nodes write, of all ranks that answer in time."""
    monitor, found = run.folder.monitor, dict[int, str]()
    if _watches(run) is False:
        raise SubmitError(
            "its ranks can't be asked: the hang watch reads the stacks, and this run has monitor.hang_minutes=null. "
            "On their node, `py-spy dump --pid PID` prints the stacks of a process; `jobs.py shell` opens a shell there."
        )
    sent, end = send_request(run.folder, requests.DEBUG), time.monotonic() + ANSWER_S
    while wanted - found.keys() and time.monotonic() < end:
        time.sleep(POLL_S)
        for answer in map(read_json, monitor.glob("debug-*.json")):
            texts = answer.get("stacks")
            if answer.get("id") == sent and isinstance(texts, dict):
                found |= {int(number): str(text) for number, text in texts.items() if number.isdecimal()}
    return found


def _watches(run: RunEntry) -> bool | None:
    """Return whether the run has a hang watch; None if its configuration can't be read."""
    with suppress(CheckpointError, KeyError, TypeError):
        return read_frozen(run.folder)["monitor"]["hang_minutes"] is not None
    return None


def _explain_missing(run: RunEntry, ranks: list[int]) -> str:
    hosts = ", ".join(map(str, run.folder.read_info().get("hosts") or []))
    named = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    pbs = " On PBS only the first node is asked." if run.scheduler == "pbs" else ""
    return (
        f"no stacks of {named} within {ANSWER_S:.0f} s (nodes: {hosts or 'not known yet'}).{pbs} A rank has none before it starts "
        "to import a framework, nor on a node whose monitor does not run: see monitor/errors.txt in the run folder."
    )
