"""`monitor.serve` and `monitor.dashboard`: web servers on the first node of a job."""

import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from train_anywhere.features.feature import Check, Feature, NodeService
from train_anywhere.files.atomic import dumps, open_file, write_with_folder
from train_anywhere.monitor.ranks import short
from train_anywhere.runs.attempts import hosts, running_job
from train_anywhere.runs.folder import RunDir


class Serve(Feature):
    """Serve TensorBoard and a dashboard while the run trains."""

    @property
    def on_node(self) -> bool:  # type: ignore[override]
        """True if a server runs."""
        return self.config.monitor.serve or self.config.monitor.dashboard is not None

    def check(self, stage: Check, members: int) -> list[str]:
        """Return problems with the served files, the dashboard command and the address."""
        monitor, problems = self.config.monitor, list[str]()
        command, address = monitor.dashboard, monitor.serve_address
        if stage != "any":
            return []
        if monitor.serve and not monitor.tensorboard:
            problems += [
                "monitor.serve=true needs monitor.tensorboard=true, which writes the files to show; use that, or monitor.serve=false."
            ]
        words: list[str] = []
        with suppress(ValueError):  # an unclosed quote
            words = shlex.split(command or "")[1:]
        if command is not None and not any("{port}" in word for word in words):  # no shell runs it
            problems += [
                f"monitor.dashboard={command!r} is not a command with a {{port}} placeholder; write {{port}} where it takes its port: "
                "monitor.dashboard='nvdashboard {port}'."
            ]
        if address is not None and not _is_address(address):
            problems += [
                f"monitor.serve_address={address!r} is not an address to listen on; use monitor.serve_address=0.0.0.0 for all networks of "
                "the node, or null for loopback."
            ]
        return problems

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the servers, on the first node only."""
        if short(hosts()[0]) != short(host):
            return []
        monitor = self.config.monitor
        command = ["--logdir", str(run.tensorboard), "--host={address}", "--port={port}", *BOARD_OPTIONS]
        board = shlex.join([sys.executable, "-c", BOARD, *command]) if monitor.serve else None
        where = (monitor.serve_address, self.config.cluster.site.login, host)
        return [
            partial(Server, run, title, command, *where)
            for title, command in {"TensorBoard": board, "dashboard": monitor.dashboard}.items()
            if command
        ]


def _is_address(text: str) -> bool:
    if ":" in text or re.fullmatch(r"[0-9.]+", text):
        with suppress(ValueError):
            return bool(ip_address(text))
        return False
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text))


BOARD = (
    "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf'); "
    "from tensorboard.main import run_main; run_main()"
)
"""Starts TensorBoard. Unless that module exists, it imports TensorFlow, if installed, for its file functions."""

BOARD_OPTIONS = ("--load_fast=false", "--reload_interval=10", "--reload_multifile=true")
"""Fast loading would start another process, which could outlive this one."""

LOOPBACK = "127.0.0.1"
ANY = ("0.0.0.0", "::")

BOUND = "import ctypes, os, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""Runs a command that the kernel kills with this process, by PR_SET_PDEATHSIG, which a Mac lacks."""

START_S, RETRY_S, END_S = 120.0, 0.2, 2.0
"""Longest start in seconds, from a busy shared disk, seconds between two attempts to connect, and seconds to end."""


class Server:
    """Service that runs a command which serves a page, records its URL, and stops it at the end of the job.

    `command` has `{port}`, and may have `{address}`. `address` is where to listen; None: loopback.
    """

    def __init__(
        self, run: RunDir, title: str, command: str, address: str | None, login: str | None, name: str
    ) -> None:
        self.every_seconds = 0.1
        self.title, self.command, self.name, self.address, self.login = title, command, name, address, login
        self.served = run.monitor / f"{title.lower()}.json"
        self.process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._record({})  # remove the URL of an earlier, killed server

    def poll(self, now: float) -> None:
        """Start the command, and print and record its URL once it answers, or print why it does not."""
        self.every_seconds = threading.TIMEOUT_MAX  # a second poll would start another one
        try:
            address = self.address or LOOPBACK
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.bind((address, 0))
                port = int(probe.getsockname()[1])
            problem = self._start(address, port)
        except OSError as error:
            problem = str(error.strerror or error)
        if problem:
            if not self._closed:
                print(f"{self.title} does not run on {self.name}: {problem}", flush=True)
            return
        found = server_address(port, self.name, self.address, self.login if running_job() else "")
        self._record(found)  # before it is printed, so that it is there when the log is read
        print("".join(f"{line}\n" for line in lines(found, self.title)), end="", flush=True)

    def _start(self, address: str, port: int) -> str:
        """Start the command and wait until it answers. Return why it does not, or "". Raises OSError."""
        log, typed = self.served.with_suffix(".log"), shlex.split(self.command)
        words = [word.replace("{port}", str(port)).replace("{address}", address) for word in typed]
        if not shutil.which(words[0]):
            return f"{words[0]} is not installed, or not on PATH"
        with open_file(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOUND, *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if (code := self.process.poll()) is not None:
                return f"it exited with code {code}, see {log}"
            with suppress(OSError), socket.create_connection((address, port), timeout=1):
                return ""
            time.sleep(RETRY_S)
        return f"nothing answers on port {port} after {START_S:.0f} s, see {log}"

    def close(self) -> None:
        """Stop the command and the processes that it started."""
        self._closed = True
        for number in (signal.SIGTERM, signal.SIGKILL) if self.process else ():
            assert self.process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        self._record({})

    def _record(self, found: dict[str, str | None]) -> None:
        """Write the URL to a file for `jobs.py status`. Disk errors are ignored."""
        with suppress(OSError):
            write_with_folder(self.served, dumps(found))


def server_address(port: int, node: str, address: str | None, login: str | None) -> dict[str, str | None]:
    """Return the URL of a server, and the ssh command (`tunnel`) to type first.

    The server listens on `address`, None for loopback. The name of the login node is None if it is unknown, and "" if the server is on
    this machine and needs no tunnel.
    """
    # a server on the loopback is reached only from its node, through the login node
    loopback = address in (None, LOOPBACK, "localhost")
    host = "localhost" if loopback else node if address in ANY else str(address)
    if login == "":
        return {"url": f"http://{host}:{port}/", "tunnel": None}
    user, gate = getpass.getuser(), login or "<login node>"
    through = f"-J {user}@{gate} {user}@{node}" if loopback else f"{user}@{gate}"
    return {"url": f"http://localhost:{port}/", "tunnel": f"ssh -N -L {port}:{host}:{port} {through}"}


def lines(found: dict[str, str | None], title: str) -> list[str]:
    """Return the lines for the log."""
    url = f"{title + ':':<15}{found['url']}"
    return [url, f"  on your own machine, first:  {found['tunnel']}"] if found["tunnel"] else [url]
