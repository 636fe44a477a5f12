"""`jobs.py save`: make a run write a checkpoint now."""

import sys
import time
from pathlib import Path

from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.commands.running.job_shell import cancel, find_job, refuse_program
from train_anywhere.errors import SubmitError
from train_anywhere.files.plain_json import read_json
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.monitor import requests
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry

POLL_S = 0.5
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
    print(one_line(display_path(_save(run, time.monotonic() + timeout, timeout))), flush=True)
    if stop:
        print(one_line(cancel(run)))


def _save(run: RunEntry, end: float, timeout: float) -> Path:
    folder = run.folder.monitor
    before, step, checked = requests.read_id(folder / requests.SAVED), None, time.monotonic()
    sent = send_request(run.folder, requests.SAVE)
    try:
        while time.monotonic() < end:
            time.sleep(POLL_S)
            answer = read_json(folder / requests.SAVED)
            # another `save` may have replaced the request; its checkpoint is newer than this command too
            if answer.get("id") != before and isinstance(answer.get("step"), int):
                step = answer["step"]
                store = CheckpointStore(run.folder.checkpoints, "min", 1)
                if found := [one.path for one in store.all() if one.step >= step]:
                    return found[0]
            if time.monotonic() - checked >= CHECK_EVERY_S:
                checked = time.monotonic()
                find_job(run, "save a checkpoint")
    finally:
        requests.withdraw(folder / requests.SAVE, {"id": sent})
    if step is not None:
        raise SubmitError(
            f"the checkpoint of step {step} was not complete after {timeout:g} s; `jobs.py logs` shows whether its disk is full."
        )
    raise SubmitError(
        f"it saved nothing within {timeout:g} s. Several ranks save after the next step that logs metrics "
        "(trainer.log_every_n_steps), and none saves while it starts or tests: wait longer with --timeout."
    )


def send_request(run: RunDir, name: str) -> str:
    """Write a request to the run, and return its id. Raises SubmitError if the run folder can't be written."""
    try:
        return requests.send(run.monitor / name)
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(
            f"{run.monitor} can't be written ({why}), so the run can't be asked; its owner can do it."
        ) from None
