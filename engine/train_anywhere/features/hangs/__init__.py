"""The hang watch, `monitor.hang_minutes`: it prints which ranks are missing, slow or hang, and can requeue the job.

startup       ranks that have not started, while others wait for them
hangs         ranks that hang, and which one holds the others up
stragglers    ranks that are steadily slower than the others
verdict       the first node decides, prints it and writes RUN/monitor/watch.json
stacks        each rank writes where it is in its program
kill_ranks    with `monitor.hang=requeue`, the ranks are killed, and the job is requeued
rank_watch    all of this as a part of the side process of a node
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train_anywhere.features.feature import Feature, Part
from train_anywhere.runs.folder import RunDir


class HangWatch(Feature):
    """Watch the ranks of each node."""

    name = "hangs"
    on_node = True

    def wanted(self) -> bool:
        """Return whether `monitor.hang_minutes` is set."""
        return self.config.monitor.hang_minutes is not None

    def parts(self, run: RunDir, host: str) -> list[Callable[[], Part]]:
        """Return the watch of the node's ranks."""
        from train_anywhere.features.hangs.rank_watch import Watch

        return [lambda: Watch(run, self.config.monitor, host)]

    @contextmanager
    def in_rank(self, heartbeat: Path | None) -> Iterator[None]:
        """Write the stacks of this process at SIGUSR2."""
        from train_anywhere.features.hangs import stacks

        stacks.register(heartbeat)
        try:
            yield
        finally:
            stacks.unregister(heartbeat)

    def verdicts(self, facts: Any) -> list[str]:
        """Return who is missing, who hangs, and who is slow."""
        from train_anywhere.features.hangs.hang_verdicts import hung, not_there_yet, slow_ranks

        return [*not_there_yet(facts), *hung(facts), *slow_ranks(facts)]
