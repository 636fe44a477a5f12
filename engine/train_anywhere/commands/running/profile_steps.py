"""`jobs.py profile`: make ranks profile their next steps, and print their slowest operations."""

import re
import secrets
import sys
import time

from train_anywhere.commands.running.job_shell import find_job, refuse_program
from train_anywhere.errors import SubmitError
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.monitor import requests
from train_anywhere.monitor.live import write
from train_anywhere.monitor.requests import Profile, operation_rows, read_profiles
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry

POLL_S = 0.5
CHECK_EVERY_S = 15.0
"""Seconds between two checks whether the run still trains."""


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
    number = 1 + secrets.randbelow(requests.MAX_NUMBER - 1)
    file = run.folder.monitor / requests.PROFILE
    request = {"number": number, "ranks": wanted, "steps": steps}
    try:
        write(file, request)
    except OSError as error:
        raise SubmitError(
            f"{file} can't be written ({error.strerror or error}), so the run can't be asked."
        ) from None
    which = f"rank{'s' if len(wanted) > 1 else ''} {', '.join(map(str, wanted))}"
    print(one_line(f"{run.folder.id}: waiting for {steps} steps of {which} ..."), file=sys.stderr, flush=True)
    try:
        found = _wait(run, number, wanted, timeout)
    finally:
        requests.withdraw(file, request)
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
    end = checked = time.monotonic()
    end += timeout
    while time.monotonic() < end:
        time.sleep(POLL_S)
        found = [one for one in read_profiles(run.folder) if one.number == number]
        if {one.rank for one in found} >= set(wanted):
            return found
        if time.monotonic() - checked >= CHECK_EVERY_S:
            checked = time.monotonic()
            find_job(run, "be profiled")
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
