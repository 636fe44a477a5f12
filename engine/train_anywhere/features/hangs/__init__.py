"""The hang watch, `monitor.hang_minutes`: ranks that are missing, slow or hang.

hangs         detects ranks that have not started, that hang, and which one blocks the others
supervisor    on the first node: detects slow ranks, decides, prints and writes RUN/monitor/watch.json
stacks        makes each rank write its stack traces; with `monitor.hang=requeue`, kills the ranks so that the job is requeued
rank_watch    all of this as a service of a node's monitor process
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from train_anywhere.errors import listed
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.ranks import mappings
from train_anywhere.runs.facts import number
from train_anywhere.runs.folder import RunDir


class HangWatch(Feature):
    """Watch the ranks of each node."""

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

    def verdicts(self, facts: Any) -> Iterator[str]:
        """Yield sentences about ranks that did not start, that hang or hung, or are slow."""
        watch = facts.watch
        late, hang, hangs = watch.get("late"), watch.get("hang"), mappings(watch.get("hangs"))
        if isinstance(late, list) and late:
            yield f"not started yet: rank{'s' if len(late) > 1 else ''} {listed(late)}."
        if isinstance(hang, Mapping) and hang.get("line"):
            yield str(hang["line"])
        elif hangs:
            steps = listed(str(h.get("step")) for h in hangs)
            yield f"the run hung at step {steps} and was stopped: see the stack traces in monitor/."
        for rank in mappings(watch.get("slow")):
            if "rank" in rank and (factor := number(rank.get("factor"))) is not None:
                host = next((n.host for n in facts.present if rank["rank"] in n.ranks_here), None)
                where = f" on {host}" if host else ""
                yield f"rank {rank['rank']}{where} took {factor:.1f} times as long as the others for its own work, and all wait for it."
