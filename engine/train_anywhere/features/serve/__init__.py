"""`monitor.serve` and `monitor.dashboard`: pages from the first node of a job, reached through ssh; see `servers.py`."""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from train_anywhere.features.feature import Feature, Part
from train_anywhere.runs.folder import RunDir


class Serve(Feature):
    """Serve TensorBoard and a dashboard while the run trains."""

    name = "serve"

    def wanted(self) -> bool:
        """Return whether something is served, or an address is given, which is checked."""
        m = self.config.monitor
        return m.serve or m.dashboard is not None or m.serve_address is not None

    @property
    def on_node(self) -> bool:
        """Whether there is something to serve."""
        return self.config.monitor.serve or self.config.monitor.dashboard is not None

    def problems(self) -> list[str]:
        """What is served must be written, and the address must be one."""
        monitor, problems = self.config.monitor, list[str]()
        address = monitor.serve_address
        if monitor.serve and not monitor.tensorboard:
            problems += [
                "monitor.serve=true shows what monitor.tensorboard writes, and that is false; use monitor.tensorboard=true, or "
                "monitor.serve=false."
            ]
        if monitor.dashboard is not None:
            problems += _dashboard(monitor.dashboard)
        if address is not None and not _is_address(address):
            problems += [
                f"monitor.serve_address={address!r} is no address to listen at; use monitor.serve_address=0.0.0.0 for all networks of "
                "the node, or null for loopback."
            ]
        return problems

    def parts(self, run: RunDir, host: str) -> list[Callable[[], Part]]:
        """Return the servers, on the first node."""
        from train_anywhere.features.serve.servers import board, dashboard, is_first

        wanted = (
            {board: self.config.monitor.serve, dashboard: self.config.monitor.dashboard}
            if is_first(host)
            else {}
        )
        return [
            partial(make, run, self.config.monitor, self.config.cluster.site.login, host)
            for make, on in wanted.items()
            if on
        ]


def _is_address(text: str) -> bool:
    """A name of a host or an interface's address; what has colons, or digits alone, is no name."""
    if ":" in text or re.fullmatch(r"[0-9.]+", text):
        with suppress(ValueError):
            return bool(ip_address(text))
        return False
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text))


def _dashboard(command: str) -> list[str]:
    """It is given a free port in place of `{port}`, and is run without a shell."""
    with suppress(ValueError):  # a quote without its end
        if any("{port}" in word for word in shlex.split(command)[1:]):
            return []
    return [
        f"monitor.dashboard={command!r} is no command that can be told a port; write {{port}} where it takes one: "
        "monitor.dashboard='nvdashboard {port}'."
    ]
