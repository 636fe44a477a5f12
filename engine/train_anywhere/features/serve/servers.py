"""Web servers on the first node of a job, as children of the monitor process, and the ssh command that reaches them."""

import getpass
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.config.schema import Monitor
from train_anywhere.files import with_engine
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.plain_json import dumps
from train_anywhere.runs.attempts import hosts, running_job
from train_anywhere.runs.folder import RunDir

LOOPBACK = "127.0.0.1"
ANY = ("0.0.0.0", "::")
DONE_S = 3600.0
"""Poll interval after the first poll: the server has started, or can't."""

END_S = 5.0


class Server:
    """Service that starts a server, records its address, and stops it at the end of the job.

    Args:
        title: name of the server for messages.
        served: file for its URL and ssh command.
        program: module and arguments of a program that prints its port, and exits at the end of its input.
        address: address to listen on; None: loopback.
        login: name of a login node, see `server_address`.
        name: name of this node.

    Raises:
        OSError: it can't be started.
    """

    def __init__(
        self,
        title: str,
        served: Path,
        program: Sequence[str],
        address: str | None,
        login: str | None,
        name: str,
    ) -> None:
        self.every_seconds = 0.1
        self.title, self.served, self.name = title, served, name
        self.address, self.login = address, login
        self._record({})  # remove the URL of an earlier, killed server
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        command = [sys.executable, "-m", *program]
        self.process = subprocess.Popen(
            command, env=with_engine(), stdin=pipe, stdout=pipe, stderr=quiet, text=True
        )

    def poll(self, now: float) -> None:
        """Wait until the server prints its port, or why it has none; record its URL and print it."""
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
        """Write the URL to a file for rank 0, which alone writes run.json. Errors of the disk are ignored."""
        with suppress(OSError):
            make_folder(self.served.parent)
            write_atomic(self.served, dumps(found))


def start_board(run: RunDir, monitor: Monitor, login: str | None, name: str) -> Server:
    """Start a TensorBoard server of the run."""
    address = monitor.serve_address or LOOPBACK
    program = ["train_anywhere.features.serve.board", str(run.tensorboard), address]
    return Server("TensorBoard", run.server_file("tensorboard"), program, monitor.serve_address, login, name)


def start_dashboard(run: RunDir, monitor: Monitor, login: str | None, name: str) -> Server:
    """Start the command of `monitor.dashboard`."""
    log = str(run.monitor / "dashboard.log")
    make_folder(run.monitor)
    address = monitor.serve_address or LOOPBACK
    program = ["train_anywhere.features.serve.dashboard", str(monitor.dashboard), address, log]
    return Server("dashboard", run.server_file("dashboard"), program, monitor.serve_address, login, name)


def is_first(name: str) -> bool:
    """Return whether a node is that of rank 0."""
    return hosts()[0].partition(".")[0] == name.partition(".")[0]


def server_address(port: int, node: str, address: str | None, login: str | None) -> dict[str, str | None]:
    """Return the URL of a server, and the ssh command (`tunnel`) to type first on the machine with the browser.

    Args:
        port: port of the server.
        node: name of the server's node.
        address: address it listens on; None: loopback of the node.
        login: name of a login node; None: unknown; "": the server is on this machine, and needs no tunnel.
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
