"""The watch of one node, and on the first node the decision for all.

every node        reads the heartbeats of its ranks, and writes them for the first node: RUN/monitor/ranks-<host>.json
the first node    reports missing, slow and hanging ranks in the log and in RUN/monitor/watch.json
every node        then writes the stack traces of its ranks, and with `monitor.hang=requeue` kills them
every node        answers `jobs.py debug` with the stack traces of its ranks
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.errors import listed
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs import stacks
from train_anywhere.features.hangs.supervisor import FILE, HangDetector, print_line
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor import live
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import write
from train_anywhere.monitor.ranks import NodeRanks, RankStatus, mappings, short
from train_anywhere.runs.attempts import start_of_job
from train_anywhere.runs.facts import number
from train_anywhere.runs.folder import RunDir

WRITES_PER_HANG = 20
"""Number of times that a node writes its file within `monitor.hang_minutes`, at intervals from 1 to 10 s."""

WRITES_PER_S = 10
"""Largest number of writes per second by all nodes together: of 1,000 nodes, each writes every 100 s."""

ASKED_EVERY_S = 2.0
"""Least seconds between two looks for a request of `jobs.py debug`; many nodes look more rarely, like `WRITES_PER_S`."""


class HangWatch(Feature):
    """Watch the ranks of each node."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether `monitor.hang_minutes` is set."""
        return self.config.monitor.hang_minutes is not None

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the service that watches the node's ranks."""
        return [lambda: Watch(run, self.config, host)]

    @contextmanager
    def in_rank(self, heartbeat: Heartbeat) -> Iterator[None]:
        """Make this process write its stack traces on SIGUSR2."""
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


class Watch:
    """Service that watches the ranks of one node, on the first one with the supervisor."""

    every_seconds = 1.0

    def __init__(
        self, run: RunDir, config: Config, host: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        expected = hosts_by_rank(environ.get("TRAIN_HOSTS", ""))
        nodes, every = (
            len(set(expected.values())),
            60 * (config.monitor.hang_minutes or 0.0) / WRITES_PER_HANG,
        )
        self.run, self.node = run, NodeRanks(run, host)
        self.interval = max(min(10.0, max(self.every_seconds, every)), nodes / WRITES_PER_S)
        self.supervisor: HangDetector | None = None
        if not expected or short(expected[0]) == short(host):
            self.supervisor = HangDetector(self.node, config, self.interval, environ)
        self._start = start_of_job(environ)
        self._last_write = self._last_read = self._last_asked = 0.0
        self._handled: Any = None
        self._asked_every = max(ASKED_EVERY_S, nodes / WRITES_PER_S)
        self._asked = live.read_id(run.monitor / live.DEBUG)

    def poll(self, now: float) -> None:
        """Read the ranks, write their state, and act on the supervisor's decision. Raises OSError."""
        ranks = self.node.read()
        if time.monotonic() - self._last_write >= self.interval:
            self._last_write = time.monotonic()
            with suppress(OSError):
                self.node.write()
        if time.monotonic() - self._last_asked >= self._asked_every:
            self._last_asked = time.monotonic()
            self._answer_debug(ranks)
        if self.supervisor:
            self.supervisor.update(ranks)
        elif time.monotonic() - self._last_read >= self.interval:
            self._last_read = time.monotonic()
            self._follow_decision(ranks)

    def close(self) -> None:
        """Write the last state of the ranks, and remove leftover heartbeats."""
        with suppress(OSError):
            self.node.write()
        self.node.close()

    def _answer_debug(self, ranks: list[RankStatus]) -> None:
        """Write the stacks of this node's ranks if `jobs.py debug` has requested them."""
        asked = live.read_id(self.run.monitor / live.DEBUG)
        if asked and asked != self._asked:
            found = stacks.describe(ranks, stacks.collect(ranks, self.node.place.path))
            # the keys of an object in JSON are strings
            answer = {"id": asked, "stacks": {str(rank): text for rank, text in found.items()}}
            with suppress(OSError):  # the command then reports that it got no answer
                write(self.run.monitor / f"debug-{self.node.host}.json", answer)
        self._asked = asked or self._asked

    def _follow_decision(self, ranks: list[RankStatus]) -> None:
        """Write stack traces and kill ranks, as decided on the first node at this start."""
        decision = read_json(self.run.monitor / FILE)
        hang = decision.get("hang")
        if decision.get("start") != self._start or not isinstance(hang, dict):
            return
        if hang.get("number") != self._handled:
            self._handled = hang.get("number")
            stacks.write(self.run.monitor, ranks, stacks.collect(ranks, self.node.place.path))
        if hang.get("end") and (left := stacks.kill(ranks)):
            print_line(f"ranks {left} of {self.node.host} can't be killed: they wait for a disk or a device.")
