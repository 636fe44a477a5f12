"""A lock that lets only one job train in a run folder.

The message for a second one names the first.

<run folder>/lock    the identity of the process that trains there; it updates the modification time every `HEARTBEAT_S`
"""

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from train_anywhere.distributed import programs
from train_anywhere.errors import CheckpointError, SchedulerError
from train_anywhere.files.atomic import claim, read_json, replace
from train_anywhere.files.removal import remove_file
from train_anywhere.runs.attempts import job_name
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

HEARTBEAT_S, STALE_AFTER_S = 5.0, 20.0
"""Heartbeat period, and how long to wait for a heartbeat if nothing else shows whether the holder is alive."""


class RunLock:
    """Context manager that rank 0 holds while training in a run folder.

    A lock left by a killed process is taken over. Times of two clocks are never compared: nodes disagree, and clocks jump. The recorder
    writes the progress of the run with each heartbeat.
    """

    def __init__(
        self, run: RunDir, recorder: RunRecorder | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.recorder, self.path = recorder, run.path / "lock"
        self.me = identity(environ)
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="lock", daemon=True)

    def __enter__(self) -> Self:
        """Acquire the lock. Raises CheckpointError if another job trains in the run folder."""
        while not self._create():
            self._remove_left_behind(self.refuse_if_held())
        self._beats.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._beats.join()
        if self.recorder:
            self.recorder.record_progress()
        with suppress(OSError):  # a lock that stays names an exited process, so the next job takes it over
            if read_holder(self.path) == self.me:
                self._remove_left_behind(self.me)

    def refuse_if_held(self) -> dict[str, Any] | None:
        """Return the identity that left the lock, if any. Raises CheckpointError if it is held."""
        if os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_file()):
            raise CheckpointError(
                f"{self.path} is not a file of this project; move it away, then resume again."
            )
        holder = read_holder(self.path)
        if holder is None and self.path.exists():
            time.sleep(1)  # a process that has just created the lock writes its identity
            holder = read_holder(self.path)
        if holder is not None and is_alive(self.path, holder, self.me):
            who = f"job {holder['job']}" if holder["job"] else f"process {holder['pid']}"
            cancel = f"scancel {holder['job']}" if holder["job"] else f"kill {holder['pid']}"
            raise CheckpointError(
                f"{who} on {holder['host']} trains in {self.path.parent}: two would overwrite each other's checkpoints. "
                f"Wait for its end, stop it ({cancel}), or start a new run."
            )
        return holder

    def _create(self) -> bool:
        """Create the lock. Return False if it exists."""
        try:
            with open(self.path, "x") as file:
                file.write(json.dumps(self.me) + "\n")
            return True
        except FileExistsError:
            return False
        except OSError as error:
            why = f"{self.path} can't be written ({error.strerror}); nothing was trained."
            raise CheckpointError(why) from error

    def _remove_left_behind(self, left_by: dict[str, Any] | None) -> None:
        """Remove the lock if it still names `left_by`. A newer lock is moved back."""
        try:
            moved = claim(self.path)
        except FileNotFoundError:
            return
        if read_holder(moved) != left_by:
            replace(moved, self.path)
        else:
            remove_file(moved)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full or absent disk is reported by the checkpointer
                os.utime(self.path)
            if self.recorder:
                self.recorder.record_progress()


def identity(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the values that identify this process to another one on any node."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "cluster": environ.get("SLURM_CLUSTER_NAME", ""),
        "job": job_name(environ) or "",
        "restart": environ.get("SLURM_RESTART_COUNT", ""),
    }


def read_holder(path: Path) -> dict[str, Any] | None:
    """Return the identity of the lock's holder, if it is written."""
    holder, known = read_json(path), identity({})
    valid = all(type(holder.get(name)) is type(value) for name, value in known.items())
    return holder if valid else None


def is_alive(path: Path, holder: dict[str, Any], me: dict[str, Any]) -> bool:
    """Return whether the process that wrote the lock is alive, by the first of these checks that applies.

    On the same machine: its processes. In the same job: another restart count means that the job was requeued. On the same cluster:
    Slurm's queue. Else: whether the lock's modification time changes within `STALE_AFTER_S`.
    """
    if holder["host"] == me["host"]:
        return holder["started"] == process_start(holder["pid"]) and holder["started"] != ""
    if holder["job"] and (holder["job"], holder["cluster"]) == (me["job"], me["cluster"]):
        return holder["restart"] == me["restart"] and watch_heartbeat(path)
    queued = is_job_running(holder["job"]) if holder["job"] and holder["cluster"] == me["cluster"] else None
    return watch_heartbeat(path) if queued is None else queued


def process_start(pid: int) -> str:
    """Return the start time of a process, which distinguishes those of this machine with the same pid, or "" if it has exited.

    The unit is clock ticks since boot if /proc has it, else the output of `ps`. `psutil.Process.create_time()` is not used: it
    adds the boot time, which changes when the clock is set, so the lock of a living process would look stale.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()


def is_job_running(job: str) -> bool | None:
    """Return whether Slurm runs the job. None if squeue does not tell."""
    known = read_job_states(job)
    return None if known is None else any(state not in ("PENDING", "REQUEUED") for state in known)


def read_job_states(job: str) -> list[str] | None:
    """Return the states of a job in Slurm's queue. None if squeue does not tell."""
    try:
        command = ["squeue", "--noheader", "--array", "--jobs", job, "--format=%i|%A|%T"]
        output = programs.query(command, "Invalid job id specified")
    except SchedulerError:
        return None
    rows = [line.split("|") for line in output.split() if not line.startswith("CLUSTER:")]
    if not all(re.fullmatch("[A-Z_]+", row[-1]) for row in rows):
        return None
    # squeue lists all members for an array's id, which is also the plain id of one member
    return [row[-1] for row in rows if job in row[:-1] or len(row) == 1]


def watch_heartbeat(path: Path) -> bool:
    """Return whether the lock's modification time changes within `STALE_AFTER_S`."""
    with suppress(FileNotFoundError):
        before, end = path.stat().st_mtime_ns, time.monotonic() + STALE_AFTER_S
        while time.monotonic() < end:
            time.sleep(0.5)
            if path.stat().st_mtime_ns != before:
                return True
    return False
