"""Start commands in new Linux namespaces and enter them again, with util-linux."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from train_anywhere.errors import ProjectError


class TestbedError(ProjectError):
    """The testbed can't do what was requested. The message names what to do instead."""

    __test__ = False  # the name starts like a test class; pytest should not look into it


UNSHARE = ["unshare", "--net", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]


def start(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `argv` in the background, safe from Ctrl-C, with its output in `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
        )


def capture(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `argv` and return its output. After the timeout, end everything it started.

    SIGTERM comes first, because a killed `srun` would leave its job running.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, env=env, text=True, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.communicate(timeout=5)
            return
        except subprocess.TimeoutExpired:
            continue


def child_of(pid: int) -> int:
    """Wait for the first child of `pid`, such as that of `unshare --fork`, and return its id.

    Raises TestbedError: the process ended without a child.
    """
    while is_running(pid):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.003)
    raise TestbedError(f"process {pid} ended before it started its namespaces: see the testbed's log folder")


def start_time(pid: int) -> str | None:
    """Return the start of a process in clock ticks since boot. None if it does not run.

    Together with the process id, which may be reused, it identifies the process. psutil's `create_time`
    would change when the clock is set, and another process compares this value later.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] == "Z" else words[19]


def is_running(pid: int) -> bool:
    """Return whether a process runs."""
    return start_time(pid) is not None


def kill(pid: int) -> None:
    """Kill a process, or all of a namespace by its process 1, and wait for its end."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    while is_running(pid):
        time.sleep(0.003)


def enter(pid: int, *, pid_namespace: bool, cwd: str | os.PathLike[str]) -> list[str]:
    """Return the prefix of a command that runs it in the namespaces of `pid`.

    Without `pid_namespace` the command stays one process that gets signals directly; with it, nsenter forks.
    """
    kinds = ["--net", "--uts", "--mount", "--ipc"]
    words = ["nsenter", "--target", str(pid), *kinds, f"--wdns={os.fspath(cwd)}"]
    return words + (["--pid"] if pid_namespace else [])
