"""`monitor.serve` and `monitor.dashboard`: web servers on the first node of a job, reached through ssh; see `servers.py`."""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from train_anywhere.features.feature import Check, Feature, NodeService
from train_anywhere.runs.folder import RunDir


class Serve(Feature):
    """Serve TensorBoard and a dashboard while the run trains."""

    name = "serve"

    def is_on(self) -> bool:
        """Return whether a server runs, or an address is set, which must be checked."""
        m = self.config.monitor
        return m.serve or m.dashboard is not None or m.serve_address is not None

    @property
    def on_node(self) -> bool:
        """Whether a server runs."""
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
        from train_anywhere.features.serve.servers import is_first, start_board, start_dashboard

        if not is_first(host):
            return []
        monitor = self.config.monitor
        servers = [(start_board, monitor.serve), (start_dashboard, monitor.dashboard)]
        login = self.config.cluster.site.login
        return [partial(start, run, monitor, login, host) for start, on in servers if on]


def _is_address(text: str) -> bool:
    """Return whether a string is a host name or an IP address; with colons or only digits and dots it must be an address."""
    if ":" in text or re.fullmatch(r"[0-9.]+", text):
        with suppress(ValueError):
            return bool(ip_address(text))
        return False
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text))


def _command_problems(command: str) -> list[str]:
    """Return a message unless the command, which runs without a shell, has the placeholder `{port}`."""
    with suppress(ValueError):  # an unclosed quote
        if any("{port}" in word for word in shlex.split(command)[1:]):
            return []
    return [
        f"monitor.dashboard={command!r} is not a command with a {{port}} placeholder; write {{port}} where it takes its port: "
        "monitor.dashboard='nvdashboard {port}'."
    ]
