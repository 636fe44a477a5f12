"""Requests to the ranks of a run: `jobs.py save`, `jobs.py debug` and `jobs.py profile`."""

import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.commands.running.job_shell import cancel, find_job, refuse_program
from train_anywhere.errors import CheckpointError, SubmitError, listed
from train_anywhere.files.atomic import read_json
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.monitor import live
from train_anywhere.monitor.live import Profile, operation_rows, read_profiles, write
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry

POLL_S = 0.3

CHECK_EVERY_S = 15.0
"""Seconds between two checks whether the run still trains; the scheduler should not be asked more often."""


def save(run: RunEntry, stop: bool, timeout: float) -> None:
    """Make the run write a checkpoint, wait until it is complete, and print its path; with `stop`, then end the run.

    Raises:
        SubmitError: the run does not train or is a program, or no checkpoint is complete after `timeout` seconds.
        SchedulerError: the scheduler does not answer.
    """
    refuse_program(run, "which saves by itself; `jobs.py cancel` asks it to stop")
    find_job(run, "save a checkpoint")
    print(one_line(f"{run.folder.id}: waiting for its next checkpoint ..."), file=sys.stderr, flush=True)
    print(one_line(display_path(_save(run, timeout))), flush=True)
    if stop:
        print(one_line(cancel(run)))


def _save(run: RunEntry, timeout: float) -> Path:
    folder = run.folder.monitor
    before, step = live.read_id(folder / live.SAVED), None
    sent = send_request(run.folder, live.SAVE)
    try:
        for _ in polls(run, timeout, "save a checkpoint"):
            answer = read_json(folder / live.SAVED)
            # another `save` may have replaced the request; its checkpoint is newer than this command too
            if answer.get("id") != before and isinstance(answer.get("step"), int):
                step = answer["step"]
                store = CheckpointStore(run.folder.checkpoints, "min", 1)
                if found := [one.path for one in store.all() if one.step >= step]:
                    return found[0]
    finally:
        live.withdraw(folder / live.SAVE, {"id": sent})
    if step is not None:
        raise SubmitError(
            f"the checkpoint of step {step} was not complete after {timeout:g} s; `jobs.py logs` shows whether its disk is full."
        )
    raise SubmitError(
        f"it saved nothing within {timeout:g} s. Several ranks save after the next step that logs metrics "
        "(trainer.log_every_n_steps), and none saves while it starts or tests: wait longer with --timeout."
    )


def polls(run: RunEntry, timeout: float, what: str) -> Iterator[None]:
    """Yield several times a second until `timeout` seconds have passed.

    Args:
        run: the run, which has to train all the time.
        timeout: seconds to wait.
        what: what the run can't do if it does not train.

    Raises:
        SubmitError: the run no longer trains.
        SchedulerError: the scheduler does not answer.
    """
    end = checked = time.monotonic()
    end += timeout
    while time.monotonic() < end:
        time.sleep(POLL_S)
        yield
        if time.monotonic() - checked >= CHECK_EVERY_S:
            checked = time.monotonic()
            find_job(run, what)


def send_request(run: RunDir, name: str) -> str:
    """Write a request to the run, and return its id. Raises SubmitError if the run folder can't be written."""
    try:
        return live.send(run.monitor / name)
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(
            f"{run.monitor} can't be written ({why}), so the run can't be asked; its owner can do it."
        ) from None


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
    size = max(1, run.folder.read_info().get("world_size") or 1)
    wanted = parse_ranks(ranks, size)
    number = 1 + secrets.randbelow(live.MAX_NUMBER - 1)
    file = run.folder.monitor / live.PROFILE
    request = {"number": number, "ranks": wanted, "steps": steps}
    try:
        write(file, request)
    except OSError as error:
        raise SubmitError(
            f"{file} can't be written ({error.strerror or error}), so the run can't be asked."
        ) from None
    which = f"rank{'s' if len(wanted) > 1 else ''} {listed(wanted)}"
    print(one_line(f"{run.folder.id}: waiting for {steps} steps of {which} ..."), file=sys.stderr, flush=True)
    try:
        found = _wait(run, number, wanted, timeout)
    finally:
        live.withdraw(file, request)
    for one in found:
        print(one_line(f"rank {one.rank}, steps {one.first}-{one.last}:"))
        print(
            "\n".join(
                one_line(f"  {ms:>10} ms a step  {calls:>8} calls  {name}")
                for ms, calls, name in operation_rows(one)
            )
        )
    print(one_line(display_path(run.folder.path / "profile")))


def _wait(run: RunEntry, number: int, wanted: list[int], timeout: float) -> list[Profile]:
    """Return the profiles of all ranks that were asked. Raises SubmitError, SchedulerError."""
    for _ in polls(run, timeout, "be profiled"):
        found = [one for one in read_profiles(run.folder) if one.number == number]
        if {one.rank for one in found} >= set(wanted):
            return found
    raise SubmitError(
        f"no profile of all these ranks within {timeout:g} s. Several ranks start after the next step that logs metrics "
        "(trainer.log_every_n_steps); `jobs.py logs` says if a profiler failed. Wait longer with --timeout, or profile fewer steps."
    )


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


ANSWER_S = 45.0
"""Seconds for the monitors of all nodes to answer: they look for requests every few seconds, and py-spy takes up to 10."""


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
    hang_minutes: object = ""
    with suppress(CheckpointError, KeyError, TypeError):
        hang_minutes = read_frozen(run.folder)["monitor"]["hang_minutes"]
    if hang_minutes is None:
        raise SubmitError(
            "its ranks can't be asked: the hang watch reads the stacks, and this run has monitor.hang_minutes=null. "
            "On their node, `py-spy dump --pid PID` prints the stacks of a process; `jobs.py shell` opens a shell there."
        )
    sent = send_request(run.folder, live.DEBUG)
    for _ in polls(run, ANSWER_S, "print its stacks"):
        for answer in map(read_json, monitor.glob("debug-*.json")):
            texts = answer.get("stacks")
            if answer.get("id") == sent and isinstance(texts, dict):
                found |= {int(number): str(text) for number, text in texts.items() if number.isdecimal()}
        if wanted <= found.keys():
            break
    return found


def _explain_missing(run: RunEntry, ranks: list[int]) -> str:
    hosts = listed(run.folder.read_info().get("hosts") or [])
    named = f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"
    pbs = " On PBS only the first node is asked." if run.scheduler == "pbs" else ""
    return (
        f"no stacks of {named} within {ANSWER_S:.0f} s (nodes: {hosts or 'not known yet'}).{pbs} A rank has none before it starts "
        "to import a framework, nor on a node whose monitor does not run: see monitor/errors.txt in the run folder."
    )
