"""`monitor.notify`: messages when a run fails, hangs, has a loss of nan, leaves its GPUs idle, or is done.

events      files in RUN/monitor with what has happened, written by ranks and monitors
messages    sends them: the monitor of the first node, and at the end the batch script, which outlives the ranks
"""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.runs.folder import RunDir


class Notify(Feature):
    """Send messages to a command or a webhook."""

    name = "notify"
    on_node = True

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
        """Return the sender, on the first node only."""
        from train_anywhere.features.notify.messages import Sender
        from train_anywhere.features.serve.servers import is_first

        target = str(self.config.monitor.notify)
        return [lambda: Sender(run, target)] if is_first(host) else []

    def after_ranks_here(self, run: RunDir) -> None:
        """Send how the run ended."""
        from train_anywhere.features.notify.messages import send_end

        send_end(run, str(self.config.monitor.notify))
