"""Servers of pages on the first node of a job, as children of the side process, and the ssh command that reaches them."""

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
ENDS_WITHIN_S = 5.0


class Server:
    """Starts a server, says where it is, and ends it with this process.

    Args:
        title: of what it shows.
        served: the file that says where it is.
        program: prints its port, and ends when its input does.
        address: where it listens; None: loopback.
        login: name of a login node, see `place`.
        name: of this node.

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
        self._write_down({})  # an earlier one may have been killed
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        command = [sys.executable, "-m", *program]
        self.process = subprocess.Popen(
            command, env=with_engine(), stdin=pipe, stdout=pipe, stderr=quiet, text=True
        )

    def look(self, now: float) -> None:
        """Wait until the server says its port, or why it has none; write that down and print it."""
        assert self.process.stdout
        said = self.process.stdout.readline().strip()
        self.every_seconds = DONE_S
        if not said.isdigit():
            print(f"{self.title} does not run on {self.name}: {said or 'it ended at its start'}", flush=True)
            return
        found = place(int(said), self.name, self.address, self.login if running_job() else "")
        self._write_down(found)  # before it is printed: whoever reads the log finds it
        print("".join(f"{line}\n" for line in lines(found, self.title)), end="", flush=True)

    def close(self) -> None:
        """End the server."""
        assert self.process.stdin
        with suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(ENDS_WITHIN_S)
        self.process.kill()
        self.process.wait()
        self._write_down({})

    def _write_down(self, found: dict[str, str | None]) -> None:
        """For run.json, which rank 0 alone writes. A disk that refuses is done without."""
        with suppress(OSError):
            make_folder(self.served.parent)
            write_atomic(self.served, dumps(found))


def board(run: RunDir, monitor: Monitor, login: str | None, name: str) -> Server:
    """A TensorBoard server of the run."""
    program = [
        "train_anywhere.features.serve.board",
        str(run.tensorboard),
        monitor.serve_address or LOOPBACK,
    ]
    return Server("TensorBoard", run.served("tensorboard"), program, monitor.serve_address, login, name)


def dashboard(run: RunDir, monitor: Monitor, login: str | None, name: str) -> Server:
    """The command of `monitor.dashboard`."""
    log = str(run.monitor / "dashboard.log")
    make_folder(run.monitor)
    program = [
        "train_anywhere.features.serve.dashboard",
        str(monitor.dashboard),
        monitor.serve_address or LOOPBACK,
        log,
    ]
    return Server("dashboard", run.served("dashboard"), program, monitor.serve_address, login, name)


def is_first(name: str) -> bool:
    """Whether a node is the one that rank 0 is on."""
    return hosts()[0].partition(".")[0] == name.partition(".")[0]


def place(port: int, node: str, address: str | None, login: str | None) -> dict[str, str | None]:
    """Where a browser finds it, and the command to type first on the machine with the browser.

    Args:
        address: where it listens; None: loopback of the node.
        login: name of a login node; None: unknown; "": it is on this machine, and needs no tunnel.
    """
    if login == "":
        return {"url": f"http://{_listening(address, 'localhost', node)}:{port}/", "tunnel": None}
    user, gate = getpass.getuser(), login or "<login node>"
    there = f"-L {port}:{_listening(address, 'localhost', node)}:{port}"
    tunnel = (
        f"ssh -N {there} {user}@{gate}"
        if address not in (None, LOOPBACK, "localhost")
        else f"ssh -N {there} -J {user}@{gate} {user}@{node}"
    )
    return {"url": f"http://localhost:{port}/", "tunnel": tunnel}


def lines(found: dict[str, str | None], title: str) -> list[str]:
    """What the log says."""
    said = [f"{title + ':':<15}{found['url']}"]
    return [*said, f"  on your own machine, first:  {found['tunnel']}"] if found["tunnel"] else said


def _listening(address: str | None, loopback: str, node: str) -> str:
    if address in (None, LOOPBACK, "localhost"):
        return loopback
    return node if address in ANY else str(address)
