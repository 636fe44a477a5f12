"""Start Python programs as forks of one process that has imported what they need, so that none waits for an import.

A new interpreter takes seconds to import a framework; a fork of a process that has imported it starts at once. The server only
imports: nothing that threads, devices or process groups depend on is initialized before a fork. A fork looks like a new
interpreter: its own session, folder, environment, umask, standard streams, signal handlers and random state. It runs the
program's real file as `__main__` and exits as the interpreter does.

    python -m src.launch.forkserver NUMBER MODULES...    NUMBER: the descriptor of the socket on which requests arrive
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import util
from pathlib import Path
from typing import IO, Any, Protocol

from src.files import ROOT
from src.monitor.ranks import GONE, process_state
from src.runs.lock import started

ROOM = " " * 4000
"""Last word of the server's command line: a fork writes its own command line over it."""

READ_AT_IMPORT = (
    "CUDA", "KERAS", "KMP", "LD_", "MALLOC", "MKL", "OMP", "OPENBLAS", "PYTHON", "PYTORCH", "TF_C", "TORCH_", "XLA",
)  # fmt: skip
"""Starts of the names of variables that libraries read while they are imported."""

LOST = -int(signal.SIGKILL)
"""Exit code of a fork whose server was killed: nobody else can know it."""


class Process(Protocol):
    """What starters of programs need of `subprocess.Popen`."""

    pid: int
    returncode: Any
    stdin: Any

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise subprocess.TimeoutExpired after `timeout` seconds."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, if the program still runs."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ForkedProcess:
    """A program that runs as a fork, with the methods of `subprocess.Popen` that its starters use.

    Attributes:
        pid: its process, which leads a session and a process group.
        returncode: its exit code, negative for a signal; None while it runs.
        stdin: the pipe to its standard input, if one was requested.
    """

    def __init__(self, answers: socket.socket, pid: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = None
        self.returncode: int | None = None
        self._answers = answers

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code.

        Args:
            timeout: seconds; None: for ever.

        Raises:
            subprocess.TimeoutExpired: the program still runs.
        """
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(_read_line(self._answers) or LOST)
            self._answers.close()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, if the program still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts programs as forks of a process that has imported `modules`; use it as a context manager.

    Where a fork is not possible, `start` starts a new interpreter: on macOS, whose libraries do not survive a fork
    (https://github.com/python/cpython/issues/77906); for a program with other options than -u, -m and -c, or with another value of a
    variable that libraries read while they are imported; and if the server could not import the modules.

    Args:
        modules: imported before the first fork.
        environ: environment of the server; None: that of this process.
        root: folder from which the project's modules are imported.
        around: words before the server's command.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environ: Mapping[str, str] | None = None,
        root: Path = ROOT,
        around: Sequence[str] = (),
    ) -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self._socket: socket.socket | None = None
        if sys.platform == "darwin" or not hasattr(os, "fork"):
            return
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [*around, sys.executable, "-m", "src.launch.forkserver", str(number), *modules, ROOM]
            quiet = subprocess.DEVNULL
            self._server = subprocess.Popen(
                command, cwd=root, env=self._environ, pass_fds=[number], start_new_session=True,
                stdin=quiet, stdout=quiet, stderr=quiet,
            )  # fmt: skip

    @classmethod
    def join(cls, client: socket.socket) -> "ForkServer":
        """Return the server at the other end of a socket of `MORE`, for use in its forks."""
        self = cls.__new__(cls)
        self._socket, self._environ = client, AFTER_IMPORTS
        return self

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server; programs that run continue."""
        if self._socket:
            self._socket.close()
            self._socket = None
            self._server.wait()

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = True,
    ) -> Process:
        """Start a program, as `subprocess.Popen` does; returns once it runs.

        Args:
            command: this Python and its arguments.
            env: environment; None: that of this process.
            cwd: folder; None: that of this process.
            stdin, stdout, stderr: as for `subprocess.Popen`; only stdin may be a pipe.
            start_new_session: of a new interpreter; a fork always has a session of its own.
        """
        environ = dict(os.environ if env is None else env)
        with ExitStack() as streams:
            pipe = os.pipe() if stdin is subprocess.PIPE else None
            writer = os.fdopen(pipe[1], "wb", 0) if pipe else None
            numbers = [
                _descriptor(streams, *one)
                for one in ((pipe[0] if pipe else stdin, 0), (stdout, 1), (stderr, 2))
            ]
            numbers[2] = numbers[1] if stderr is subprocess.STDOUT else numbers[2]
            if pipe:
                streams.callback(os.close, pipe[0])
            known = self._serves(command) and not self.differing(environ)
            if known and (forked := self.fork(command, environ, cwd or Path.cwd(), numbers)):
                forked.stdin = writer
                return forked
            process = subprocess.Popen(
                command, env=environ, cwd=cwd, stdin=numbers[0], stdout=numbers[1], stderr=numbers[2],
                start_new_session=start_new_session,
            )  # fmt: skip
            process.stdin = writer
            return process

    def _serves(self, command: Sequence[str]) -> bool:
        """Return whether a fork can do what the command's options ask for."""
        words = [word for word in command[1:3] if word != "-u"]
        return bool(words) and (words[0] in ("-m", "-c") or not words[0].startswith("-"))

    def differing(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables that libraries read while they are imported, and that differ from the server's."""
        names = {n for n in environ.keys() | self._environ.keys() if n.startswith(READ_AT_IMPORT)}
        return sorted(
            n for n in names - {"PYTHONUNBUFFERED", "PYTHONPATH"} if environ.get(n) != self._environ.get(n)
        )

    def fork(
        self, command: Sequence[str], environ: Mapping[str, str], cwd: str | Path, streams: Sequence[int]
    ) -> ForkedProcess | None:
        """Start a program as a fork, whatever differs; None if there is no server any more.

        Args:
            command: this Python and its arguments.
            environ: its environment.
            cwd: its folder.
            streams: descriptors of its standard input, output and error.
        """
        if not self._socket:
            return None
        request = {
            "command": [*command],
            "environ": {**environ},
            "cwd": str(cwd),
            "umask": _umask(),
            "starter": os.getpid(),
        }
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [b"."], [theirs.fileno(), *streams])
                ours.sendall(json.dumps(request).encode(errors="surrogateescape") + b"\n")
            except OSError:
                ours.close()
                return None
        if line := _read_line(ours):
            return ForkedProcess(ours, int(line))
        ours.close()
        return None


def _descriptor(streams: ExitStack, stream: Any, number: int) -> int:
    """Return the descriptor that a program gets as its `number`."""
    if stream is subprocess.DEVNULL:
        opened = os.open(os.devnull, os.O_RDWR)
        streams.callback(os.close, opened)
        return opened
    if stream is None or stream == subprocess.STDOUT:
        return number
    return stream if isinstance(stream, int) else int(stream.fileno())


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _read_line(connection: socket.socket) -> str:
    """Return a line without its end; "" if the other side has gone."""
    found = b""
    while not found.endswith(b"\n"):
        try:
            part = connection.recv(1 << 16)
        except OSError:
            return ""
        if not part:
            return ""
        found += part
    return found[:-1].decode(errors="surrogateescape")


# --- the server ---------------------------------------------------------------------------------------------------


AFTER_IMPORTS: dict[str, str] = {}
"""Environment of this server once it has imported the modules."""

MORE: list[socket.socket] = []
"""Further sockets on which requests arrive; a module may add one, for what forks start themselves."""


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. In a fork, return the request; in the server None, when its client has gone."""
    children: dict[int, socket.socket] = {}
    sockets, server = [requests, *MORE], os.getpid()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer)
    while True:
        watched: list[Any] = [*sockets, reader]
        ready = select.select(watched, [], [])[0]
        if reader in ready:
            os.read(reader, 1 << 12)
            _report_ends(children)
        for source in set(ready) - {reader}:
            _, passed, _, _ = socket.recv_fds(source, 1, 4)
            if not passed:
                return None
            answers = socket.socket(fileno=passed[0])
            request = json.loads(_read_line(answers) or "null")
            child = _fork() if request else -1
            if not child:
                signal.set_wakeup_fd(-1)
                for one in (*sockets, answers, *children.values()):
                    one.close()
                os.close(reader)
                os.close(writer)
                return {**request, "streams": passed[1:], "server": server}
            for number in passed[1:]:
                os.close(number)
            if child > 0:
                answers.sendall(f"{child}\n".encode())
                children[child] = answers
            else:
                answers.close()


def _fork() -> int:
    """Return the fork's process id, 0 in the fork, or -1 if the system has no room for a process."""
    try:
        return os.fork()
    except OSError:
        return -1


def _report_ends(children: dict[int, socket.socket]) -> None:
    """Send the exit code of each fork that has ended to whoever waits for it."""
    for child in list(children):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            with children.pop(child) as answers, suppress(OSError):
                answers.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(request: Mapping[str, Any], imported: Mapping[str, str]) -> list[str]:
    """Make this fork look like a new interpreter; returns its words without -u.

    Args:
        request: what `ForkServer.start` has sent.
        imported: variables that were set by what the server has imported.
    """
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update({**imported, **request["environ"]})
    os.getppid = starter(request["starter"], request["server"])  # type: ignore[assignment]
    for to, passed in enumerate(request["streams"]):
        os.dup2(passed, to)
    for passed in request["streams"]:
        os.close(passed)
    show_as(request["command"])
    words = request["command"][1:]
    unbuffered = words[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    streams = {
        "stdin": io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), sys.stdin.encoding),
        "stdout": _text(1, sys.stdout, unbuffered),
        "stderr": _text(2, sys.stderr, unbuffered),
    }
    for name, stream in streams.items():
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for finalizer in util._finalizer_registry.values():  # type: ignore[attr-defined]
        finalizer._pid = os.getpid()  # else it is skipped at the end: it was registered in the server
    tempfile.tempdir = None
    time.tzset()
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    return words[words[0] == "-u" :]


def starter(pid: int, server: int) -> Callable[[], int]:
    """Return what os.getppid is in a fork: the process that requested it, or 1 once that or the server has ended."""
    parent, start, fork = os.getppid, int(started(pid) or 0), os.getpid()

    def getppid() -> int:
        if os.getpid() != fork:  # a child of the fork, such as a worker that reads data
            return parent()
        return pid if parent() == server and process_state(pid, start) != GONE else 1

    return getppid


def show_as(command: Sequence[str]) -> None:
    """Make `ps` and `pgrep -f` show another command line for this process, by writing over its own (Linux, see proc(5))."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = map(
            int, fields[45:47]
        )  # arg_start and arg_end: the first field here is the third of the file
        text = "\0".join(command).encode(errors="surrogateescape")[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _text(number: int, like: Any, unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        like.encoding,
        like.errors,
        line_buffering=not unbuffered and (raw.isatty() or number == 2),
        write_through=unbuffered,
    )


def run(words: list[str]) -> None:
    """Run a script, a module (-m) or code (-c), as the interpreter does."""
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
    """Import the modules and serve until the client has gone; in a fork, run the program."""
    requests, before = socket.socket(fileno=number), dict(os.environ)
    for name in modules:
        importlib.import_module(name)
    imported = {name: value for name, value in os.environ.items() if before.get(name) != value}
    AFTER_IMPORTS.update(os.environ)
    gc.collect()
    gc.freeze()
    if (request := serve(requests)) is not None:
        run(become(request, imported))


if __name__ == "__main__":
    from src.launch import forkserver  # under its own name, as the modules know it

    forkserver.main(int(sys.argv[1]), [name for name in sys.argv[2:] if name != forkserver.ROOM])
