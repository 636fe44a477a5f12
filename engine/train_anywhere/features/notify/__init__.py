"""`monitor.notify`: messages when a run fails, hangs, has a loss of nan, leaves its GPUs idle, or is done; `__main__` sends one."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal
from urllib.parse import urlsplit

from train_anywhere.errors import STOPPED
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.files.root import with_engine
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.monitor.live import write
from train_anywhere.runs.folder import RunDir

LIMIT_S = 30.0
"""Longest time in seconds that the end of a run waits for its messages."""


def record_event(run: RunDir, kind: Literal["failed", "hung", "nan", "idle", "done"], text: str) -> None:
    """Write an event to RUN/monitor. A disk that fails loses the message, which the log has too."""
    with suppress(OSError):
        write(run.monitor / f"event-{kind}.json", {"kind": kind, "text": text})


def take_events(run: RunDir) -> list[str]:
    """Return names of the files of new events, which are renamed so that each is sent once. Raises OSError."""
    files = sorted(run.monitor.glob("event-*.json"))
    return [path.rename(path.with_name(path.name.replace("event-", "sent-", 1))).name for path in files]


def start(run: RunDir, what: str) -> subprocess.Popen[bytes]:
    """Start a process that sends an event, or the end of the run; see `__main__`. Raises OSError."""
    command = [sys.executable, "-m", __name__, str(run.path), what]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=with_engine(), stdin=quiet, stdout=quiet, start_new_session=True)


class Notify(Feature):
    """Send messages to a command or a webhook; the object is also the service that does so in the first node's monitor."""

    name = "notify"
    on_node = True
    every_seconds = 2.0
    run: RunDir

    def is_on(self) -> bool:
        """Return whether `monitor.notify` is set."""
        return self.config.monitor.notify is not None

    def problems(self) -> list[str]:
        """Return a message if the value is neither a URL of a webhook nor a command."""
        target = self.config.monitor.notify or ""
        with suppress(ValueError):  # an unclosed quote, or a port that is not a number
            if not re.match(r"\w+:/", target) and shlex.split(target):
                return []
            url = urlsplit(target)
            if url.scheme in ("http", "https") and url.hostname and url.port != 0:
                return []
        return [
            f"monitor.notify={mask_urls(target)!r} is neither a command nor the URL of a webhook; use https://... of an incoming "
            "webhook, a command such as 'mail -s train me@example.org', or null."
        ]

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return this object, on the first node only."""
        from train_anywhere.features.serve.servers import is_first

        self.run = run
        return [lambda: self] if is_first(host) else []

    def poll(self, now: float) -> None:
        """Start a process for each new event; nothing waits for it. Raises OSError."""
        for name in take_events(self.run):
            start(self.run, name)

    def close(self) -> None:
        """Do nothing: the processes end by themselves."""

    @contextmanager
    def supervise(self, job: Any) -> Iterator[None]:
        """Send how the run ended, and the events that the monitor has left; nothing about a run that can continue."""
        yield
        if job.code != STOPPED or any(job.run.monitor.glob("event-*")):
            job.run_python("-m", __name__, str(job.run.path), str(job.code), limit=LIMIT_S)
