"""Calls in forks of this process, which start in milliseconds and leave nothing."""

import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


class ForkError(Exception):
    """A fork raised an error, was killed or timed out. The message ends with the error's name."""


def compare(*arguments: str, code: int = 0) -> str:
    """Compare programs in a new process, whose forks have no threads of pytest. Return its output."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def call_in_forks(functions: Sequence[Callable[[], Any]], timeout: float = 60) -> list[Any]:
    """Return the results of functions that run at the same time, such as the ranks of a run.

    A result is a ForkError if the function raised an error, died or did not return in time.
    """
    started = [_start(function) for function in functions]
    deadline = time.monotonic() + timeout
    return [_result(pid, pipe, deadline) for pid, pipe in started]


def _start(function: Callable[[], Any]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    folder = tempfile.mkdtemp(prefix="differential-")
    try:
        os.setpgid(0, 0)
        with open(f"{folder}/output", "wb", buffering=0) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        try:
            answer = (True, function())
        except BaseException as error:
            words = "".join(traceback.format_exception(error))[-3000:]
            answer = (False, f"{words}\n{type(error).__name__}: {error}")
        with suppress(BrokenPipeError), open(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _result(pid: int, pipe: int, deadline: float) -> Any:
    parts = []
    try:
        while select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
            part = os.read(pipe, 1 << 20)
            if not part:
                break
            parts.append(part)
        else:
            return ForkError("ran too long")
    finally:
        os.close(pipe)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not parts:
        return ForkError("died without a result")
    good, answer = pickle.loads(b"".join(parts))
    return answer if good else ForkError(answer)


def torchrun_variables(ranks: int) -> list[dict[str, str]]:
    """Return the environment of each rank of a run on this machine."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
    }
    common |= {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
    common |= {"TRAIN_HOSTS": f"node0:{ranks}"}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def make_folder() -> Path:
    """Return a new temporary folder."""
    return Path(tempfile.mkdtemp(prefix="differential-", dir="/var/tmp"))
