"""`monitor.serve` and `monitor.dashboard`: web servers on the first node of a job."""

import getpass
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from train_anywhere.features.feature import Check, Feature, NodeService
from train_anywhere.files import with_engine
from train_anywhere.files.atomic import dumps, write_with_folder
from train_anywhere.runs.attempts import hosts, running_job
from train_anywhere.runs.folder import RunDir


class Serve(Feature):
    """Serve TensorBoard and a dashboard while the run trains."""

    def is_on(self) -> bool:
        """Return whether a server runs, or an address is set, which must be checked."""
        m = self.config.monitor
        return m.serve or m.dashboard is not None or m.serve_address is not None

    @property
    def on_node(self) -> bool:  # type: ignore[override]
        """True if a server runs."""
        return self.config.monitor.serve or self.config.monitor.dashboard is not None

    def check(self, stage: Check, members: int) -> list[str]:
        """Return problems with the served files, the dashboard command and the address."""
        if stage != "any":
            return []
        monitor, problems = self.config.monitor, list[str]()
        address = monitor.serve_address
        if monitor.serve and not monitor.tensorboard:
            problems += [
                "monitor.serve=true needs monitor.tensorboard=true, which writes the files to show; use that, or monitor.serve=false."
            ]
        if monitor.dashboard is not None:
            problems += _command_problems(monitor.dashboard)
        if address is not None and not _is_address(address):
            problems += [
                f"monitor.serve_address={address!r} is not an address to listen on; use monitor.serve_address=0.0.0.0 for all networks of "
                "the node, or null for loopback."
            ]
        return problems

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the servers, on the first node only."""
        if not is_first(host):
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


def _command_problems(command: str) -> list[str]:
    """Return a message unless the command has the placeholder `{port}`. No shell runs it."""
    with suppress(ValueError):  # an unclosed quote
        if any("{port}" in word for word in shlex.split(command)[1:]):
            return []
    return [
        f"monitor.dashboard={command!r} is not a command with a {{port}} placeholder; write {{port}} where it takes its port: "
        "monitor.dashboard='nvdashboard {port}'."
    ]


BOARD = (
    "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf'); "
    "from tensorboard.main import run_main; run_main()"
)
"""Starts TensorBoard. Unless that module exists, it imports TensorFlow, if installed, for its file functions."""

BOARD_OPTIONS = ("--load_fast=false", "--reload_interval=10", "--reload_multifile=true")
"""Fast loading would start another process, which could outlive this one."""

LOOPBACK = "127.0.0.1"
ANY = ("0.0.0.0", "::")
DONE_S = 3600.0
"""Poll interval after the first poll: the server has started, or can't."""

END_S = 5.0


class Server:
    """Service that starts a server, records its address, and stops it at the end of the job. Raises OSError: it can't be started.

    `command` has `{port}`, see `dashboard.py`. `address` is where to listen; None: loopback.
    """

    def __init__(
        self, run: RunDir, title: str, command: str, address: str | None, login: str | None, name: str
    ) -> None:
        self.every_seconds = 0.1
        self.title, self.name, self.address, self.login = title, name, address, login
        self.served = run.server_file(title.lower())
        self._record({})  # remove the URL of an earlier, killed server
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        words = [command, address or LOOPBACK, str(self.served.with_suffix(".log"))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__name__}.dashboard", *words],
            env=with_engine(), stdin=pipe, stdout=pipe, stderr=quiet, text=True,
        )  # fmt: skip

    def poll(self, now: float) -> None:
        """Wait until the server prints its port, or why it has none, and record its URL."""
        assert self.process.stdout
        answer = self.process.stdout.readline().strip()
        self.every_seconds = DONE_S
        if not answer.isdigit():
            why = answer or "it exited at its start"
            print(f"{self.title} does not run on {self.name}: {why}", flush=True)
            return
        found = server_address(int(answer), self.name, self.address, self.login if running_job() else "")
        self._record(found)  # before it is printed, so that it is there when the log is read
        print("".join(f"{line}\n" for line in lines(found, self.title)), end="", flush=True)

    def close(self) -> None:
        """Stop the server."""
        assert self.process.stdin
        with suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(END_S)
        self.process.kill()
        self.process.wait()
        self._record({})

    def _record(self, found: dict[str, str | None]) -> None:
        """Write the URL to a file for rank 0, which writes run.json. Disk errors are ignored."""
        with suppress(OSError):
            write_with_folder(self.served, dumps(found))


def is_first(name: str) -> bool:
    """Return whether a node is that of rank 0."""
    return hosts()[0].partition(".")[0] == name.partition(".")[0]


def server_address(port: int, node: str, address: str | None, login: str | None) -> dict[str, str | None]:
    """Return the URL of a server, and the ssh command (`tunnel`) to type first.

    The server listens on `address`, None for loopback. The name of the login node is None if it is unknown, and "" if the server is on
    this machine and needs no tunnel.
    """
    if login == "":
        return {"url": f"http://{_host(address, node)}:{port}/", "tunnel": None}
    user, gate = getpass.getuser(), login or "<login node>"
    there = f"-L {port}:{_host(address, node)}:{port}"
    # a server on the loopback is reached only from its node, through the login node
    loopback = address in (None, LOOPBACK, "localhost")
    through = f"-J {user}@{gate} {user}@{node}" if loopback else f"{user}@{gate}"
    return {"url": f"http://localhost:{port}/", "tunnel": f"ssh -N {there} {through}"}


def lines(found: dict[str, str | None], title: str) -> list[str]:
    """Return the lines for the log."""
    url = f"{title + ':':<15}{found['url']}"
    return [url, f"  on your own machine, first:  {found['tunnel']}"] if found["tunnel"] else [url]


def _host(address: str | None, node: str) -> str:
    if address in (None, LOOPBACK, "localhost"):
        return "localhost"
    return node if address in ANY else str(address)
