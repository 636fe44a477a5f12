"""`monitor.notify`: messages about a run that fails, hangs, idles, diverges or is done."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from train_anywhere.errors import STOPPED
from train_anywhere.features.feature import Check, Feature, NodeService
from train_anywhere.features.serve import is_first
from train_anywhere.files.root import with_engine
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.runs.folder import RunDir

LIMIT_S = 30.0
"""Longest time in seconds that a message takes, and that the end of a run waits."""


class Notify(Feature, NodeService):
    """Send messages to a command or a webhook, from the first node's monitor."""

    on_node = True
    every_seconds = 2.0

    def is_on(self) -> bool:
        """Return whether `monitor.notify` is set."""
        return self.config.monitor.notify is not None

    def check(self, stage: Check, members: int) -> list[str]:
        """Return a message if the value is neither a URL of a webhook nor a command."""
        if stage != "any":
            return []
        target = self.config.monitor.notify or ""
        with suppress(ValueError):  # an unclosed quote, or a port that is not a number
            url = urlsplit(target)
            is_webhook = url.scheme in ("http", "https") and url.hostname and url.port != 0
            if is_webhook or (not url.scheme and shlex.split(target)):
                return []
        return [
            f"monitor.notify={mask_urls(target)!r} is neither a command nor the URL of a webhook; use https://... of an incoming "
            "webhook, a command such as 'mail -s train me@example.org', or null."
        ]

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return this object, on the first node only."""
        self.run = run
        return [lambda: self] if is_first(host) else []

    def poll(self, now: float) -> None:
        """Start a process for each new event, without waiting for it. Raises OSError."""
        start_each(self.run)

    @contextmanager
    def supervise(self, job: Any) -> Iterator[None]:
        """Send how the run ended, unless it can continue, and the events that are left."""
        yield
        if job.code != STOPPED or any(job.run.monitor.glob("event-*")):
            job.run_python("-m", __name__, str(job.run.path), str(job.code), limit=LIMIT_S)


def start(run: RunDir, what: str) -> "subprocess.Popen[bytes]":
    """Start a process that sends an event, or the end of the run. Raises OSError."""
    command = [sys.executable, "-m", __name__, str(run.path), what]
    return subprocess.Popen(command, env=with_engine(), stdin=subprocess.DEVNULL, start_new_session=True)


def start_each(run: RunDir) -> "list[subprocess.Popen[bytes]]":
    """Start a process for each new event, which is renamed to be sent once. Raises OSError."""
    new = [path.rename(path.with_name(f"sent-{path.name[6:]}")) for path in run.monitor.glob("event-*.json")]
    return [start(run, path.name) for path in new]
