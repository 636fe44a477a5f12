"""Start Python programs as forks of a process that has imported their modules already.

A new interpreter takes seconds to import a framework, and a fork starts at once. `ForkServer` starts the process that forks
(launch/fork_main.py) and sends requests to it. A program that a fork can't run starts as a new interpreter.
"""

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

from train_anywhere.files import ENGINE, ROOT
from train_anywhere.launch.fork_main import PADDING, main
from train_anywhere.launch.warm_rank import connect, read_line, request_fork

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

    Attributes:
        why_not: why a program was not a fork.

    Args:
        modules: imported before the first fork, those of the project from the folder `root`.
        around: arguments before the server's command.
        address: the name of its Unix socket; empty: any free one.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environ: Mapping[str, str] | None = None,
        root: Path = ROOT,
        around: Sequence[str] = (),
        address: str = "",
    ) -> None:
        self._address: str | bytes = ""
        self.why_not = f"a fork is not safe on {platform.system()}"
        if sys.platform == "darwin" or not hasattr(os, "fork"):
            return
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1024)
            self._address, number = listener.getsockname(), listener.fileno()
            folders = [str(root), str(ENGINE)]
            code = f"import sys; sys.path[:1] = {folders}; from {main.__module__} import main; main({number}, {[*modules]})"
            command = [*around, sys.executable, "-c", code, PADDING]
            quiet = subprocess.DEVNULL
            self._server = subprocess.Popen(
                command, cwd=root, env=environ, pass_fds=[number], start_new_session=True,
                stdin=subprocess.PIPE, stdout=quiet, stderr=quiet,
            )  # fmt: skip

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server. Running programs continue."""
        if self._address:
            self._address = ""
            self._server.communicate()  # closes its input

    def start(self, command: Sequence[str], **options: Any) -> Process:
        """Start a script, a module or code, in a session of its own. `command` is this Python, maybe -u, and its arguments.

        `options` are those of `subprocess.Popen` for environment, folder and streams, which are files or descriptors.
        """
        given = enumerate(map(options.get, ("stdin", "stdout", "stderr")))
        streams = [
            own if one is None else one if isinstance(one, int) else one.fileno() for own, one in given
        ]
        environ = os.environ if options.get("env") is None else options["env"]
        forked = self.fork(command, environ, options.get("cwd") or Path.cwd(), streams)
        return forked or subprocess.Popen(command, **{**options, "start_new_session": True})

    def fork(
        self, command: Sequence[str], environ: Mapping[str, str], cwd: str | Path, streams: Sequence[int]
    ) -> ForkedProcess | None:
        """Start a program as a fork with these streams, if that is possible."""
        if not self._address:
            return None
        self.why_not = "the process that imports the framework has ended"
        if connection := connect(self._address, 0):
            answer = request_fork(connection, command, environ, str(cwd), streams)
            if answer.isdigit():
                return ForkedProcess(connection, int(answer))
            self.why_not = answer or self.why_not
            connection.close()
        return None
