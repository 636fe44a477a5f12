"""One job at a time in a run folder: the second is refused with the first one's job id.

<run folder>/lock    who trains there; its modification time moves as long as that process lives
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

from src.distributed import programs
from src.errors import CheckpointError, SchedulerError
from src.files.atomic import replace, take
from src.files.removal import remove_file
from src.runs.attempts import count_step
from src.runs.folder import RunDir

BEAT, WATCH = 5.0, 20.0
"""Seconds between two signs of life, and for how long another job looks for one where nothing else tells."""


ABOUT_TO_SAY = 1.0
"""Seconds for whoever has made the lock to write who it is."""


class RunLock:
    """Held while training in a run folder: `with RunLock(run): ...`, in rank 0 only.

    A lock that a killed process left behind is taken over. No clocks are compared: nodes disagree, and clocks jump.
    """

    def __init__(self, run: RunDir, environ: Mapping[str, str] = os.environ) -> None:
        self.run, self.path = run, run.path / "lock"
        self.me = identity(environ)
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="lock", daemon=True)

    def __enter__(self) -> Self:
        """Raises CheckpointError where another job trains in the run folder."""
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
        if read(self.path) == self.me:
            self._remove_left_behind(self.me)

    def refuse_if_held(self) -> dict[str, Any] | None:
        """Returns who left the lock behind, None where it does not say or there is none.

        Raises:
            CheckpointError: where another process holds it, or it is no file.
        """
        if os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_file()):
            raise CheckpointError(f"{self.path} is no file of this project; move it away, then resume again.")
        holder = read(self.path)
        if holder is None and self.path.exists():
            time.sleep(ABOUT_TO_SAY)
            holder = read(self.path)
        if holder is not None and alive(self.path, holder, self.me):
            raise CheckpointError(refusal(self.path.parent, holder))
        return holder

    def _create(self) -> bool:
        """Whether the file was not there and is ours now."""
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
        """Of several that judge the same lock only one moves it; a new one that was moved by mistake is put back."""
        try:
            moved = take(self.path)
        except FileNotFoundError:
            return
        if read(moved) != judged:
            replace(moved, self.path)
        else:
            remove_file(moved)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):  # a full or absent disk is the checkpointer's concern
                os.utime(self.path)
            self._count()

    def _count(self) -> None:
        steps = self.run.steps_done
        if steps is not None:
            count_step(self.run, steps())


def identity(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Who this process is, for another one that wants the same run folder."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": started(os.getpid()),
        "cluster": environ.get("SLURM_CLUSTER_NAME", ""),
        "job": environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or "",
        "restart": environ.get("SLURM_RESTART_COUNT", ""),
    }


def read(path: Path) -> dict[str, Any] | None:
    """Who holds the lock; None where nobody does, or somebody is just about to say so."""
    try:
        holder = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    known = identity({})
    valid = isinstance(holder, dict) and all(type(holder.get(name)) is type(known[name]) for name in known)
    return holder if valid else None


def alive(path: Path, holder: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether the process that wrote the lock still runs, by the first of these that can tell.

    The same machine knows its processes; a job that was started again has ended before; the queue knows its jobs; the
    lock's modification time, watched for a while, moves.
    """
    if holder["host"] == me["host"]:
        return holder["started"] == started(holder["pid"]) and holder["started"] != ""
    if holder["job"] and (holder["job"], holder["cluster"]) == (me["job"], me["cluster"]):
        return holder["restart"] == me["restart"] and moves(path)
    queued = runs(holder["job"]) if holder["job"] and holder["cluster"] == me["cluster"] else None
    return moves(path) if queued is None else queued


def started(pid: int) -> str:
    """When a process of this machine started, which tells it from a later one with the same number; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()


def runs(job: str) -> bool | None:
    """Whether Slurm runs the job; None where Slurm can't be asked, or says what is no state of a job."""
    try:
        said = programs.ask(
            ["squeue", "--noheader", "--jobs", str(job), "--format=%T"], "Invalid job id specified"
        )
    except SchedulerError:
        return None
    states = said.split()
    if not all(re.fullmatch("[A-Z_]+", state) for state in states):
        return None
    return any(state not in ("PENDING", "REQUEUED") for state in states)


def moves(path: Path) -> bool:
    """Watch the lock until its modification time changes, or for long enough to be sure that it won't."""
    try:
        before, end = path.stat().st_mtime_ns, time.monotonic() + WATCH
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
