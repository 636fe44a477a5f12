"""A TensorBoard server on the first node of a job, as a child of the side process, and the ssh command that reaches it."""

import getpass
import subprocess
import sys
from contextlib import suppress

from src.config.schema import Config
from src.files.atomic import write_atomic
from src.files.plain_json import dumps
from src.runs.attempts import hosts, running_job
from src.runs.folder import RunDir

LOOPBACK = "127.0.0.1"
ANY = ("0.0.0.0", "::")
DONE_S = 3600.0


class Board:
    """Starts the server, says where it is, and ends it with this process.

    Args:
        name: of this node.

    Raises:
        OSError: it can't be started.
    """

    def __init__(self, run: RunDir, config: Config, name: str) -> None:
        self.every_seconds = 0.1
        self.run, self.name = run, name
        self.address, self.login = config.monitor.serve_address, config.cluster.site.login
        self._write_down({})  # an earlier one may have been killed
        command = [sys.executable, "-m", "src.monitor.board", str(run.tensorboard), self.address or LOOPBACK]
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True)

    def look(self, now: float) -> None:
        """Wait until the server says its port, or why it has none; print that and write it down."""
        assert self.process.stdout
        said = self.process.stdout.readline().strip()
        self.every_seconds = DONE_S
        if not said.isdigit():
            print(f"TensorBoard does not run on {self.name}: {said or 'it ended at its start'}", flush=True)
            return
        found = place(int(said), self.name, self.address, self.login if running_job() else "")
        print("".join(f"{line}\n" for line in lines(found)), end="", flush=True)
        self._write_down(found)

    def close(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()
        self._write_down({})

    def _write_down(self, found: dict[str, str | None]) -> None:
        """For run.json, which rank 0 alone writes. A disk that refuses is done without."""
        with suppress(OSError):
            self.run.monitor.mkdir(exist_ok=True)
            write_atomic(self.run.served, dumps(found))


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


def lines(found: dict[str, str | None]) -> list[str]:
    """What the log says."""
    said = [f"TensorBoard:   {found['url']}"]
    return [*said, f"  on your own machine, first:  {found['tunnel']}"] if found["tunnel"] else said


def _listening(address: str | None, loopback: str, node: str) -> str:
    if address in (None, LOOPBACK, "localhost"):
        return loopback
    return node if address in ANY else str(address)
