"""The fork server: a process that imports modules, then forks for each request.

It only imports, and does not initialize threads, devices or process groups before a fork. A fork looks like a new interpreter: its own
session, folder, environment, umask, standard streams, signal handlers and random state. It runs the program's file as `__main__` and
exits like an interpreter.
"""

import ctypes
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

from train_anywhere import ENVIRON
from train_anywhere.errors import listed
from train_anywhere.files import ENGINE
from train_anywhere.job.signals import end_with_parent
from train_anywhere.launch.warm_rank import is_own
from train_anywhere.monitor.ranks import GONE, process_state
from train_anywhere.runs.lock import process_start

PADDING = " " * 4000
"""Last argument of the server's command line: space that a fork overwrites with its own command line."""

READ_AT_IMPORT = (
    "CUDA", "KERAS", "KMP", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS", "PYTHON", "PYTORCH", "TF_C", "TORCH_", "XLA",
)  # fmt: skip
"""Prefixes of environment variables that libraries read while they are imported."""

READ_LATER = frozenset({"CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONUNBUFFERED"})
"""Such variables that a fork may have other values of."""

LISTENER: list[socket.socket] = []
"""The socket on which requests arrive, in the server and in its forks."""


def changed_at_import(environ: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """Return the variables that libraries read at their import, and that differ."""
    names = {n for n in environ.keys() | before.keys() if n.startswith(READ_AT_IMPORT)} - READ_LATER
    return sorted(n for n in names if environ.get(n) != before.get(n))


def _refusal(request: Mapping[str, Any], before: Mapping[str, str]) -> str:
    """Return why a process gets no fork, or ""."""
    changed = {*changed_at_import(request["environ"], before)}
    # a program that a fork starts has the variables that imports have set
    if changed := changed & {*changed_at_import(request["environ"], os.environ)}:
        return f"{listed(sorted(changed))} changed"
    outside = not set(request.get("cpus", ())) <= os.sched_getaffinity(0)
    return "they have CPUs that are not those of the node's process" if outside else ""


def serve(listener: socket.socket, before: Mapping[str, str]) -> dict[str, Any] | None:
    """Fork for each request until the standard input ends. Return the request in a fork, and None in the server.

    A request with `cpus` comes from a process of another job step (`launch/warm_rank.py`): its fork is killed when that one ends.
    `before` is the environment before the imports.
    """
    children: dict[int, socket.socket] = {}
    tied: set[int] = set()
    server, (reader, writer) = os.getpid(), socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno())
    while True:
        watched: list[Any] = [0, listener, reader, *(children[child] for child in tied)]
        ready = select.select(watched, [], [])[0]
        if 0 in ready:
            return None
        for child in [child for child in tied if children[child] in ready]:
            tied.remove(child)
            os.kill(child, signal.SIGKILL)
        if reader in ready:
            reader.recv(1 << 12)
            _report_exits(children)
            tied &= children.keys()
        if listener not in ready:
            continue
        answers, streams, child = listener.accept()[0], list[int](), -1
        request: dict[str, Any] = {}
        with suppress(OSError, ValueError):  # the process has ended, or the system can't start another one
            if is_own(answers):
                streams += socket.recv_fds(answers, 1, 3)[1]
                with answers.makefile("rb") as stream:
                    request = json.loads(stream.readline() or "{}")
            if request and (why := _refusal(request, before)):
                answers.sendall(f"{why}\n".encode())
            elif request:
                child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            for one in (listener, reader, writer, answers, *children.values()):
                one.close()
            return {**request, "streams": streams, "server": server}
        for number in streams:
            os.close(number)
        if child < 0:
            answers.close()
            continue
        with suppress(OSError):
            answers.sendall(f"{child}\n".encode())
        children[child] = answers
        tied |= {child} if "cpus" in request else set()


def _report_exits(children: dict[int, socket.socket]) -> None:
    """Send the exit code of each fork that has exited to the process that requested it."""
    for child in list(children):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            with children.pop(child) as answers, suppress(OSError):
                answers.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def set_up_fork(request: Mapping[str, Any], imported: Mapping[str, str]) -> list[str]:
    """Make this fork look like a new interpreter, and return its arguments without -u.

    `imported` are the environment variables that imports set in the server.
    """
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if cpus := request.get("cpus"):
        os.sched_setaffinity(0, cpus)
        end_with_parent()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update({**imported, **request["environ"]})
    ENVIRON.clear()
    ENVIRON.update(request["environ"])
    os.getppid = make_getppid(request["starter"], request["server"])  # type: ignore[assignment]
    for to, passed in enumerate(request["streams"]):
        os.dup2(passed, to)
    for passed in request["streams"]:
        os.close(passed)
    set_command_line(request["command"])
    sys.orig_argv = [*request["command"]]
    words = request["command"][1:]
    unbuffered = words[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    streams = {
        "stdin": io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), sys.stdin.encoding),
        "stdout": _open_text(1, sys.stdout, unbuffered),
        "stderr": _open_text(2, sys.stderr, unbuffered),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for finalizer in util._finalizer_registry.values():  # type: ignore[attr-defined]
        finalizer._pid = os.getpid()  # else it is skipped at exit, because the server registered it
    tempfile.tempdir = None
    time.tzset()
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    return words[words[0] == "-u" :]


def make_getppid(pid: int, server: int) -> Callable[[], int]:
    """Return a replacement of os.getppid: the process that requested the fork, or 1."""
    parent, start, fork = os.getppid, int(process_start(pid) or 0), os.getpid()

    def getppid() -> int:
        if os.getpid() != fork:  # in a child of the fork, such as a data worker
            return parent()
        return pid if parent() == server and process_state(pid, start) != GONE else 1

    return getppid


def set_command_line(command: Sequence[str]) -> None:
    """Make `ps` and `pgrep -f` show another command line for this process (Linux)."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = map(int, fields[45:47])  # arg_start and arg_end; this list starts at the third field
        text = "\0".join(command).encode(errors="surrogateescape")[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _open_text(number: int, like: Any, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        like.encoding,
        like.errors,
        line_buffering=not unbuffered and (raw.isatty() or number == 2),
        write_through=unbuffered,
    )


def run_program(words: list[str]) -> None:
    """Run a script, a module (-m) or code (-c), as the interpreter does."""
    sys.path.remove(str(ENGINE))  # added for the server; a program finds the engine itself
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def main(number: int, modules: Sequence[str]) -> None:
    """Import the modules and serve requests on a socket. In a fork, run the program."""
    LISTENER[:] = [socket.socket(fileno=number)]
    before = dict(os.environ)
    for name in modules:
        importlib.import_module(name)
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()
    if (request := serve(LISTENER[0], before)) is None:
        os._exit(0)  # nothing was opened
    run_program(set_up_fork(request, imported))
