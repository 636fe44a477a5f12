"""Run commands of the project in tests as forks of warm processes.

During a test `subprocess.Popen` is the class below: it forks a command of this Python and this project, and starts other commands as
new processes. A pytest worker has a fork server for commands without a framework and one for each framework, started on first use.
Processes that a fork starts, such as the ranks of a run on this machine, are forked by the same server.

Tests of the start itself (imports, exit of the interpreter, terminals) have the mark new_process.
"""

import atexit
import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.files import ROOT
from train_anywhere.launch import fork_main
from train_anywhere.launch.forkserver import ForkServer

ENVIRON: dict[str, str] = {}
"""Environment of this process before the first test, which may change variables that libraries read."""

_servers: dict[str, ForkServer] = {}


def server(framework: str) -> ForkServer:
    """Return this process's server for commands with a framework, or without one ("")."""
    if framework not in _servers:
        own = ("features.node", "monitor.report.page", f"training.{framework}.run") if framework else ()
        modules = [*(f"train_anywhere.{name}" for name in own), "tools.testing.warm_imports"]
        _servers[framework] = ForkServer(modules, ENVIRON)
    return _servers[framework]


def join(only: ForkServer) -> None:
    """Make this process, a server or its fork, start all commands from one server."""
    _servers.update(dict.fromkeys(("", "lightning", "keras"), only))
    subprocess.Popen = Popen  # type: ignore[misc]
    fork_main.run_program = run_program


_run_program = fork_main.run_program


def run_program(words: list[str]) -> None:
    """Run a program in a fork and exit as an interpreter does, without freeing a framework's objects, which takes 0.3 s."""
    code: object = 0
    try:
        _run_program(words)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return  # the interpreter says what is lost
    os._exit(int(str(code)) & 0xFF)


IMPORTED = {"lightning": ("torch", "lightning"), "keras": ("keras", "tensorflow")}
"""Packages that a program of each framework imports."""


def framework_of(words: Sequence[str]) -> str:
    """Return the framework that a command will import, by its arguments, or ""."""
    if words[0] == "-c":
        return next((f for f, names in IMPORTED.items() if any(n in words[1] for n in names)), "")
    program = Path(words[1] if words[0] == "-m" else words[0]).stem
    if program not in ("train", "evaluate") and words[1:3] != ["train_anywhere", "fetch"]:
        # a script of the tests of a framework, or with its name as argument
        return next((f for f in IMPORTED if f in (*Path(words[0]).parts, *words[1:2])), "")
    if any(w.startswith(LIGHT) for w in words):
        return ""
    for word in words[1:]:
        with suppress(OSError, ValueError):
            if (config := Path(word.removeprefix("resume=")) / "config.yaml").is_file():
                return "keras" if "framework: keras" in config.read_text() else "lightning"
    return "keras" if "framework=keras" in words else "lightning"


LIGHT = ("dry_run=true", "cluster=", "--help", "--cfg", "--info")
"""Prefixes of arguments with which a command does not import a framework."""

NEW = subprocess.Popen


class Popen(NEW):  # type: ignore[type-arg]
    """A fork of a warm process if the command is one of this project, else a new process."""

    _forked: Any = None

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(NEW._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        command = given["args"]
        environ = dict(os.environ if given["env"] is None else given["env"])
        if self._usual(given) and (chosen := _find_server(command, environ, given["cwd"])):
            numbers = (given["p2cread"], given["c2pwrite"], given["errwrite"])
            streams = [own if number == -1 else number for own, number in enumerate(numbers)]
            self._forked = chosen.fork(command, environ, given["cwd"] or Path.cwd(), streams)
        if self._forked:
            self.pid, self._child_created = self._forked.pid, True
            self._close_pipe_fds(*(given[n] for n in PIPES))  # type: ignore[attr-defined]
        else:
            super()._execute_child(*arguments)  # type: ignore[misc]

    @staticmethod
    def _usual(given: Mapping[str, Any]) -> bool:
        """Return whether no option is used that only a new process supports."""
        odd = ("preexec_fn", "pass_fds", "shell", "executable", "gid", "uid")
        return isinstance(given["args"], list) and not any(
            given[name] not in (None, (), False) for name in odd
        )

    def _internal_poll(self, *arguments: Any, **more: Any) -> int | None:
        if self._forked:
            self.returncode = self._forked.poll()
            return self.returncode
        return super()._internal_poll(*arguments, **more)  # type: ignore[misc,no-any-return]

    def _wait(self, timeout: float | None) -> int:
        if self._forked:
            try:
                self.returncode = self._forked.wait(timeout)
            except subprocess.TimeoutExpired:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            return self.returncode
        return super()._wait(timeout)  # type: ignore[misc,no-any-return]


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _find_server(command: list[str], environ: Mapping[str, str], cwd: Any) -> ForkServer | None:
    """Return the server of a command of this project, else None."""
    if len(command) < 2 or os.fspath(command[0]) != sys.executable:
        return None
    command[:] = [os.fspath(word) for word in command]
    words = command[1 + (command[1] == "-u") :]
    if words[0] == "-c" and re.search(r"modules(?!\[)", words[1]):  # it checks which modules are imported
        return None
    here = Path(cwd or ".").resolve()
    script = not words[0].startswith("-") and (here / words[0]).resolve().is_relative_to(ROOT)
    if not script and not (words[0] in ("-m", "-c") and here == ROOT):
        return None
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(Path(folder, "sitecustomize.py").exists() for folder in folders):
        return None
    return server(framework_of(words))
