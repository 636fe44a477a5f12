"""Start a command in Linux namespaces of its own, and enter them again: unshare and nsenter of util-linux."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from train_anywhere.slurm.testbed.testbed_errors import TestbedError

UNSHARE = ["unshare", "--net", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]


def start(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `argv` in the background, out of reach of the terminal's Ctrl-C, output appended to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
        )


def capture(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `argv` and return its output; when time is up or on Ctrl-C, end everything that it started.

    SIGTERM comes first: a killed `srun` would leave its job behind.
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
    """Wait for the first child of `pid` and return its id (`unshare --fork` and `nsenter --pid` have one).

    Raises:
        TestbedError: the process ended without a child.
    """
    while alive(pid):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.003)
    raise TestbedError(f"process {pid} ended before it started its namespaces: see the testbed's log folder")


def started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot, or None if it does not run (a zombie does not).

    Together with the process id, which may be reused, it identifies the process. Not psutil's
    `create_time`, which moves when the clock is set: another process compares this later.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] == "Z" else words[19]


def alive(pid: int) -> bool:
    """Whether a process runs."""
    return started(pid) is not None


def kill(pid: int) -> None:
    """Kill a process and wait until it has ended; with process 1 of a namespace, everything in it ends."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    while alive(pid):
        time.sleep(0.003)


def enter(pid: int, *, pid_namespace: bool, cwd: str | os.PathLike[str]) -> list[str]:
    """The words to put before a command so that it runs in the namespaces of `pid`.

    Without `pid_namespace` the command stays one process that gets signals directly; with it, nsenter forks.
    """
    words = [
        "nsenter",
        "--target",
        str(pid),
        "--net",
        "--uts",
        "--mount",
        "--ipc",
        f"--wdns={os.fspath(cwd)}",
    ]
    return words + (["--pid"] if pid_namespace else [])


def wait_for_own_network(pid: int, other: int) -> None:
    """Wait until `pid` has left the network namespace of `other`."""
    while os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{other}/ns/net"):
        time.sleep(0.003)
