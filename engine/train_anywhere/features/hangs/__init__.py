"""The hang watch, `monitor.hang_minutes`: report ranks that are missing, slow or hang, and optionally requeue the job.

startup       detects ranks that have not started while others wait for them
hangs         detects ranks that hang, and which one blocks the others
stragglers    detects ranks that are steadily slower than the others
supervisor    on the first node: decides, prints and writes RUN/monitor/watch.json
stacks        makes each rank write its stack traces
kill_ranks    with `monitor.hang=requeue`, kills the ranks so that the job is requeued
rank_watch    all of this as a service of a node's monitor process
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir


class HangWatch(Feature):
    """Watch the ranks of each node."""

    name = "hangs"
    on_node = True

    def is_on(self) -> bool:
        """Return whether `monitor.hang_minutes` is set."""
        return self.config.monitor.hang_minutes is not None

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the service that watches the node's ranks."""
        from train_anywhere.features.hangs.rank_watch import Watch

        return [lambda: Watch(run, self.config, host)]

    @contextmanager
    def in_rank(self, heartbeat: Heartbeat) -> Iterator[None]:
        """Make this process write its stack traces on SIGUSR2."""
        from train_anywhere.features.hangs import stacks

        stacks.register(heartbeat)
        try:
            yield
        finally:
            stacks.unregister(heartbeat)

    def verdicts(self, facts: Any) -> list[str]:
        """Return sentences about ranks that are missing, hang or are slow."""
        from train_anywhere.features.hangs.hang_verdicts import hanging_ranks, missing_ranks, slow_ranks

        return [*missing_ranks(facts), *hanging_ranks(facts), *slow_ranks(facts)]
