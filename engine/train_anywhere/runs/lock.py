"""One job at a time in a run folder: a second one is refused with the first one's job id.

<run folder>/lock    the process that trains there; its modification time moves as long as that process lives
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
from train_anywhere.files.atomic import read_text, replace, take
from train_anywhere.files.plain_json import loads
from train_anywhere.files.removal import remove_file
from train_anywhere.runs.attempts import job_name
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

HEARTBEAT_S, STALE_AFTER_S = 5.0, 20.0
"""Heartbeat period, and how long to watch for one when nothing else shows whether the holder lives."""

WRITE_GRACE_S = 1.0
"""Time for a process that has just created the lock to write its identity."""


class RunLock:
    """Held while training in a run folder: `with RunLock(run): ...`, in rank 0 only.

    A lock that a killed process left behind is taken over. Clocks are never compared: nodes disagree, and clocks jump.

    Args:
        recorder: records every few seconds how far the run is.
    """

    def __init__(
        self, run: RunDir, recorder: RunRecorder | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.recorder, self.path = recorder, run.path / "lock"
        self.me = identity(environ)
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="lock", daemon=True)

    def __enter__(self) -> Self:
        """Raises CheckpointError if another job trains in the run folder."""
        while not self._create():
            self._remove_left_behind(self.refuse_if_held())
        self._beats.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._beats.join()
        self._count()
        with suppress(
            OSError
        ):  # a lock that stays names a process that has ended, and the next one takes it over
            if read(self.path) == self.me:
                self._remove_left_behind(self.me)

    def refuse_if_held(self) -> dict[str, Any] | None:
        """Returns the ended process that left the lock behind; None if there is no lock, or it names none.

        Raises:
            CheckpointError: another process holds it, or it is not a file.
        """
        if os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_file()):
            raise CheckpointError(
                f"{self.path} is not a file of this project; move it away, then resume again."
            )
        holder = read(self.path)
        if holder is None and self.path.exists():
            time.sleep(WRITE_GRACE_S)
            holder = read(self.path)
        if holder is not None and alive(self.path, holder, self.me):
            raise CheckpointError(refusal(self.path.parent, holder))
        return holder

    def _create(self) -> bool:
        """Create the lock; False if there is one."""
        try:
            with open(self.path, "x") as file:
                file.write(json.dumps(self.me) + "\n")
            return True
        except FileExistsError:
            return False
        except OSError as error:
            raise CheckpointError(
                f"{self.path} can't be written ({error.strerror}); nothing was trained."
            ) from error

    def _remove_left_behind(self, judged: dict[str, Any] | None) -> None:
        """Of several processes that judge the same lock only one moves it; a new lock that was moved by mistake is put back."""
        try:
            moved = take(self.path)
        except FileNotFoundError:
            return
        if read(moved) != judged:
            replace(moved, self.path)
        else:
            remove_file(moved)

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full or absent disk is reported by the checkpointer
                os.utime(self.path)
            self._count()

    def _count(self) -> None:
        if self.recorder:
            self.recorder.count()


def identity(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Identifies this process to another one that wants the same run folder."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": started(os.getpid()),
        "cluster": environ.get("SLURM_CLUSTER_NAME", ""),
        "job": job_name(environ) or "",
        "restart": environ.get("SLURM_RESTART_COUNT", ""),
    }


def read(path: Path) -> dict[str, Any] | None:
    """The holder of the lock; None if there is none, or its identity is not written yet."""
    try:
        holder = loads(read_text(path))
    except (OSError, ValueError):
        return None
    known = identity({})
    valid = isinstance(holder, dict) and all(type(holder.get(name)) is type(known[name]) for name in known)
    return holder if valid else None


def alive(path: Path, holder: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether the process that wrote the lock still runs, by the first of these that can tell.

    The same machine knows its processes; a job that was requeued has ended before; the queue knows its jobs; the lock's
    modification time, watched for a while, moves.
    """
    if holder["host"] == me["host"]:
        return holder["started"] == started(holder["pid"]) and holder["started"] != ""
    if holder["job"] and (holder["job"], holder["cluster"]) == (me["job"], me["cluster"]):
        return holder["restart"] == me["restart"] and moves(path)
    queued = runs(holder["job"]) if holder["job"] and holder["cluster"] == me["cluster"] else None
    return moves(path) if queued is None else queued


def started(pid: int) -> str:
    """Identifies a process of this machine among others with the same number: its start; "" if it is gone.

    In clock ticks since boot where /proc has it. `psutil.Process.create_time()` adds the time of the boot, which moves when
    the clock is set: the lock of a living process would then look stale.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()


def runs(job: str) -> bool | None:
    """Whether Slurm runs the job; None if Slurm can't be asked, or its answer is not the state of a job."""
    known = states(job)
    return None if known is None else any(state not in ("PENDING", "REQUEUED") for state in known)


def states(job: str) -> list[str] | None:
    """Return the state of a job in Slurm's queue, none if it has ended; None if Slurm can't be asked, or its answer is not a state."""
    try:
        said = programs.ask(
            ["squeue", "--noheader", "--array", "--jobs", job, "--format=%i|%A|%T"],
            "Invalid job id specified",
        )
    except SchedulerError:
        return None
    rows = [line.split("|") for line in said.split() if not line.startswith("CLUSTER:")]
    if not all(re.fullmatch("[A-Z_]+", row[-1]) for row in rows):
        return None
    # an array's number lists all members, one of which has that number itself
    return [row[-1] for row in rows if job in row[:-1] or len(row) == 1]


def moves(path: Path) -> bool:
    """Watch the lock until its modification time changes, at most `STALE_AFTER_S`."""
    try:
        before, end = path.stat().st_mtime_ns, time.monotonic() + STALE_AFTER_S
        while time.monotonic() < end:
            time.sleep(0.5)
            if path.stat().st_mtime_ns != before:
                return True
    except FileNotFoundError:
        pass
    return False


def refusal(folder: Path, holder: dict[str, Any]) -> str:
    """The sentence for the second job."""
    who = f"job {holder['job']}" if holder["job"] else f"process {holder['pid']}"
    cancel = f"scancel {holder['job']}" if holder["job"] else f"kill {holder['pid']}"
    return (
        f"{who} on {holder['host']} trains in {folder}: two would overwrite each other's checkpoints. "
        f"Wait for its end, stop it ({cancel}), or start a new run."
    )
