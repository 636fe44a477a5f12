"""Requests to the ranks of a run: `jobs.py save`, `jobs.py debug` and `jobs.py profile`."""

import re
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.commands.running.job_shell import cancel, find_job, refuse_program
from train_anywhere.errors import CheckpointError, SubmitError, listed
from train_anywhere.files.atomic import read_json
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.monitor import live
from train_anywhere.monitor.live import operation_rows, read_profiles
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry

T = TypeVar("T")

POLL_S = 0.3

CHECK_EVERY_S = 15.0
"""Seconds between two checks whether the run still trains; the scheduler should not be asked more often."""

ANSWER_S = 45.0
"""Seconds for the monitors of all nodes to answer: they look for requests every few seconds, and py-spy takes up to 10."""


def ask(
    run: RunEntry,
    name: str,
    request: Mapping[str, Any],
    what: str,
    timeout: float,
    answer: Callable[[], T | None],
) -> T | None:
    """Write a request to a run, wait until `answer` returns something, and withdraw the request. None: `timeout` seconds have passed.

    `name` is the file of the request, and `what` names what the run can't do if it does not train all the time.

    Raises:
        SubmitError: the run no longer trains, or its folder can't be written.
        SchedulerError: the scheduler does not answer.
    """
    file = run.folder.monitor / name
    try:
        live.write(file, request)
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(
            f"{file} can't be written ({why}), so the run can't be asked; its owner can do it."
        ) from None
    end = checked = time.monotonic()
    end += timeout
    try:
        while time.monotonic() < end:
            time.sleep(POLL_S)
            if (found := answer()) is not None:
                return found
            if time.monotonic() - checked >= CHECK_EVERY_S:
                checked = time.monotonic()
                find_job(run, what)
    finally:
        live.withdraw(file, request)
    return None


def save(run: RunEntry, stop: bool, timeout: float) -> None:
    """Make the run write a checkpoint, wait until it is complete, and print its path; with `stop`, then end the run.

    Raises:
        SubmitError: the run does not train or is a program, or no checkpoint is complete after `timeout` seconds.
        SchedulerError: the scheduler does not answer.
    """
    what = "save a checkpoint"
    refuse_program(run, "which saves by itself; `jobs.py cancel` asks it to stop")
    find_job(run, what)
    print(one_line(f"{run.folder.id}: waiting for its next checkpoint ..."), file=sys.stderr, flush=True)
    saved, store = run.folder.monitor / live.SAVED, CheckpointStore(run.folder.checkpoints, "min", 1)
    before = live.read_id(saved)

    def step() -> int | None:
        # another `save` may have replaced the request; its checkpoint is newer than this command too
        known = read_json(saved)
        return known["step"] if known.get("id") != before and isinstance(known.get("step"), int) else None

    def find() -> Any:
        if (least := step()) is None:
            return None
        return next((one.path for one in store.all() if one.step >= least), None)

    path = ask(run, live.SAVE, {"id": uuid.uuid4().hex}, what, timeout, find)
    if path is None and step() is not None:
        raise SubmitError(
            f"the checkpoint of step {step()} was not complete after {timeout:g} s; `jobs.py logs` shows whether its disk is full."
        )
    if path is None:
        raise SubmitError(
            f"it saved nothing within {timeout:g} s. Several ranks save after the next step that logs metrics "
            "(trainer.log_every_n_steps), and none saves while it starts or tests: wait longer with --timeout."
        )
    print(one_line(display_path(path)), flush=True)
    if stop:
        print(one_line(cancel(run)))


def profile(run: RunEntry, steps: int, ranks: str, timeout: float) -> None:
    """Make ranks profile their next steps, wait until all of them have, and print the slowest operations.

    Args:
        run: the run.
        steps: number of optimizer steps.
        ranks: numbers of the ranks, such as 0,3 or 0-3.
        timeout: seconds to wait.

    Raises:
        SubmitError: the run does not train or is a program, has not these ranks, or has no profile after `timeout` seconds.
        SchedulerError: the scheduler does not answer.
    """
    refuse_program(run, "whose steps are its own; start the profiler of its framework in it")
    find_job(run, "be profiled")
    wanted = parse_ranks(ranks, count_ranks(run))
    number = 1 + secrets.randbelow(live.MAX_NUMBER - 1)
    which = f"rank{'s' if len(wanted) > 1 else ''} {listed(wanted)}"
    print(one_line(f"{run.folder.id}: waiting for {steps} steps of {which} ..."), file=sys.stderr, flush=True)

    def find() -> list[live.Profile] | None:
        found = [one for one in read_profiles(run.folder) if one.number == number]
        return found if {one.rank for one in found} >= {*wanted} else None

    request = {"number": number, "ranks": wanted, "steps": steps}
    if (found := ask(run, live.PROFILE, request, "be profiled", timeout, find)) is None:
        raise SubmitError(
            f"no profile of all these ranks within {timeout:g} s. Several ranks start after the next step that logs metrics "
            "(trainer.log_every_n_steps); `jobs.py logs` says if a profiler failed. Wait longer with --timeout, or profile fewer steps."
        )
    for one in found:
        print(one_line(f"rank {one.rank}, steps {one.first}-{one.last}:"))
        for ms, calls, name in operation_rows(one):
            print(one_line(f"  {ms:>10} ms a step  {calls:>8} calls  {name}"))
    print(one_line(display_path(run.folder.path / "profile")))


def count_ranks(run: RunEntry) -> int:
    """Return the number of ranks of a run."""
    return max(1, run.folder.read_info().get("world_size") or 1)


def parse_ranks(text: str, size: int) -> list[int]:
    """Return the numbers in a list such as 0,3 or 0-3. Raises SubmitError if the run has no such rank."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if not match:
            raise SubmitError(f"--ranks={text} is not a list of ranks, such as 0,3 or 0-3.")
        numbers |= {*range(int(match[1]), int(match[2] or match[1]) + 1)}
    if not numbers or max(numbers) >= size:
        raise SubmitError(
            f"--ranks={text} names a rank that the run does not have: its ranks are 0-{size - 1}."
        )
    return sorted(numbers)


def debug(run: RunEntry, rank: int | None) -> None:
    """Print the stacks of all ranks, or of one. Raises SubmitError, SchedulerError."""
    find_job(run, what := "print its stacks")
    size = count_ranks(run)
    if rank is not None and rank >= size:
        raise SubmitError(f"it has no rank {rank}: its ranks are 0-{size - 1}.")
    hang_minutes: object = ""
    with suppress(CheckpointError, KeyError, TypeError):
        hang_minutes = read_frozen(run.folder)["monitor"]["hang_minutes"]
    if hang_minutes is None:
        raise SubmitError(
            "its ranks can't be asked: the hang watch reads the stacks, and this run has monitor.hang_minutes=null. "
            "On their node, `py-spy dump --pid PID` prints the stacks of a process; `jobs.py shell` opens a shell there."
        )
    wanted = {*range(size)} if rank is None else {rank}
    request, found = {"id": uuid.uuid4().hex}, dict[int, str]()

    def collect() -> bool | None:
        for answer in map(read_json, run.folder.monitor.glob("debug-*.json")):
            texts = answer.get("stacks")
            if answer.get("id") == request["id"] and isinstance(texts, dict):
                found.update((int(number), str(text)) for number, text in texts.items() if number.isdecimal())
        return wanted <= found.keys() or None

    ask(run, live.DEBUG, request, what, ANSWER_S, collect)
    for number in sorted(wanted & found.keys()):
        print(f"---- {run.folder.id}: {found[number].rstrip()}\n")
    if missing := sorted(wanted - found.keys()):
        hosts = listed(run.folder.read_info().get("hosts") or [])
        pbs = " On PBS only the first node is asked." if run.scheduler == "pbs" else ""
        raise SubmitError(
            f"no stacks of rank{'s' if len(missing) > 1 else ''} {listed(missing)} within {ANSWER_S:.0f} s (nodes: "
            f"{hosts or 'not known yet'}).{pbs} A rank has none before it starts to import a framework, nor on a node whose monitor "
            "does not run: see monitor/errors.txt in the run folder."
        )
