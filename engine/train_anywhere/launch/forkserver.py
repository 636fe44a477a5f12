"""Start Python programs as forks of a process that has imported their modules already.

A new interpreter takes seconds to import a framework, and a fork starts at once. `ForkServer` starts the process that forks
(launch/fork_main.py) and sends requests to it. A program that a fork can't run starts as a new interpreter.
"""

import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.errors import listed
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.launch.fork_main import PADDING, changed_at_import, main, read_line

LOST_EXIT_CODE = -int(signal.SIGKILL)
"""Exit code of a fork whose server was killed, because only the server knows the real one."""


class ForkedProcess:
    """A program that runs as a fork, with `poll`, `wait`, `pid`, ... of `subprocess.Popen`. It leads a session."""

    def __init__(self, answers: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait and return the exit code. Raises TimeoutExpired if the program still runs."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(read_line(self._answers) or LOST_EXIT_CODE)
            self._answers.close()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, if the program still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[bytes]


class ForkServer:
    """Starter of programs as forks of a process that has imported `modules`.

    If a fork is not possible, `start` starts a new interpreter: on macOS, whose libraries do not survive a fork
    (https://github.com/python/cpython/issues/77906); for a program with another value of a variable that libraries read while they are
    imported; and if the server could not import the modules.

    Args:
        modules: imported before the first fork.
        environ: environment of the server; None: the environment of this process.
        root: folder from which the project's modules are imported.
        around: arguments before the server's command.
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
            folders = [str(root), str(ENGINE)]
            code = f"import sys; sys.path[:1] = {folders}; from {main.__module__} import main; main({number}, {[*modules]})"
            command = [*around, sys.executable, "-c", code, PADDING]
            quiet = subprocess.DEVNULL
            self._server = subprocess.Popen(
                command, cwd=root, env=self._environ, pass_fds=[number], start_new_session=True,
                stdin=quiet, stdout=quiet, stderr=quiet,
            )  # fmt: skip

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server. Running programs continue."""
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
        """Start a script, a module or code like `subprocess.Popen`. `command` is this Python, maybe -u, and its arguments.

        The streams are files or descriptors. `start_new_session` applies to a new interpreter; a fork always has a new session.
        """
        environ, given = dict(os.environ if env is None else env), enumerate((stdin, stdout, stderr))
        streams = [
            own if one is None else one if isinstance(one, int) else one.fileno() for own, one in given
        ]
        same = not self.list_differences(environ)
        if same and (forked := self.fork(command, environ, cwd or Path.cwd(), streams)):
            return forked
        return subprocess.Popen(
            command, env=environ, cwd=cwd, stdin=streams[0], stdout=streams[1], stderr=streams[2],
            start_new_session=start_new_session,
        )  # fmt: skip

    def list_differences(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables that libraries read at their import and that differ."""
        return changed_at_import(environ, self._environ)

    def why_not(self, environ: Mapping[str, str]) -> str:
        """Return why a program with this environment is a new interpreter, if it is one."""
        if not self._socket:
            return f"a fork is not safe on {platform.system()}"
        differing = self.list_differences(environ)
        ended = "the process that imports the framework has ended"
        return f"{listed(differing)} changed" if differing else ended

    def pass_on(self, connection: socket.socket) -> None:
        """Let the server serve a process at the other end of a connection."""
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        if self._socket:
            socket.send_fds(self._socket, [b"."], [connection.fileno(), *streams])
        for number in streams:
            os.close(number)

    def fork(
        self, command: Sequence[str], environ: Mapping[str, str], cwd: str | Path, streams: Sequence[int]
    ) -> ForkedProcess | None:
        """Start a program as a fork with these streams, unless the server has exited."""
        if not self._socket:
            return None
        umask = os.umask(0o22)  # it can be read only by setting another one
        os.umask(umask)
        own = {"cwd": str(cwd), "umask": umask, "starter": os.getpid()}
        request = {"command": [*command], "environ": {**environ}, **own}
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [b"."], [theirs.fileno(), *streams])
                ours.sendall(json.dumps(request).encode(errors="surrogateescape") + b"\n")
            except OSError:
                ours.close()
                return None
        if line := read_line(ours):
            return ForkedProcess(ours, int(line))
        ours.close()
        return None
