"""The watch of one node, a part of its side process; that of the first node looks at the ranks of all nodes and decides.

every node        reads the heartbeats of its ranks, and tells the first node: RUN/monitor/ranks-<host>.json
the first node    says in the log, and in RUN/monitor/watch.json, who has not come, who is slow and who hangs
every node        then writes the stacks of its ranks, and with `monitor.hang=requeue` ends them
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from train_anywhere.config.schema import Monitor
from train_anywhere.distributed.launcher_env import places
from train_anywhere.features.hangs import kill_ranks, stacks
from train_anywhere.features.hangs.startup import Meeting
from train_anywhere.features.hangs.verdict import FILE, Judge, say
from train_anywhere.monitor.ranks import NodeRanks, Seen, read_json, short
from train_anywhere.runs.folder import RunDir

LOOKS = 20
"""A node tells as often in the time of a hang, but not more than each second and not less than each 10 s."""

TOGETHER = 10
"""Times a second that all nodes together write at most: 1,000 nodes tell each 100 s."""


class Watch:
    """What the side process of a node does for its ranks.

    Args:
        host: the node's name.
    """

    every_seconds = 1.0

    def __init__(
        self, run: RunDir, monitor: Monitor, host: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        assert monitor.hang_minutes is not None
        bound = 60 * monitor.hang_minutes
        expected = places(environ.get("TRAIN_HOSTS", ""))
        nodes = len(set(expected.values()))
        self.run, self.node = run, NodeRanks(run, host)
        self.tell_every = max(min(10.0, max(self.every_seconds, bound / LOOKS)), nodes / TOGETHER)
        self.judge: Judge | None = None
        if not expected or short(expected[0]) == short(host):
            meeting = Meeting(expected, unseen=_unseen(expected, host, environ))
            requeue = monitor.hang == "requeue"
            self.judge = Judge(self.node, meeting, bound, self.tell_every, requeue, environ)
        self._start = kill_ranks.start_of_job(environ)
        self._told = self._asked = 0.0
        self._done: Any = None

    def look(self, now: float) -> None:
        """Read, tell, judge, and do what was decided. Raises OSError: the disk refuses; all is tried again at the next look."""
        ranks = self.node.look()
        if time.monotonic() - self._told >= self.tell_every:
            self._told = time.monotonic()
            with suppress(OSError):
                self.node.write()
        if self.judge:
            self.judge.look(ranks)
        elif time.monotonic() - self._asked >= self.tell_every:
            self._asked = time.monotonic()
            self._obey(ranks)

    def close(self) -> None:
        """The job ends."""
        with suppress(OSError):
            self.node.write()
        self.node.close()

    def _obey(self, ranks: list[Seen]) -> None:
        """Not on the first node: what its judge has written at this start of the job."""
        said = read_json(self.run.monitor / FILE)
        hang = said.get("hang")
        if said.get("start") != self._start or not isinstance(hang, dict):
            return
        if hang.get("number") != self._done:
            self._done = hang.get("number")
            stacks.write(self.run.monitor, ranks, stacks.collect(ranks, self.node.place.path))
        if hang.get("end") and (left := kill_ranks.kill(ranks)):
            say(f"ranks {left} of {self.node.host} can't be killed: they wait for a disk or a device.")


def _unseen(expected: Mapping[int, str], host: str, environ: Mapping[str, str]) -> set[int]:
    """Ranks of nodes without a side process: on PBS only the first node has one."""
    if environ.get("SLURM_JOB_ID") or not environ.get("PBS_JOBID"):
        return set()
    return {rank for rank, where in expected.items() if short(where) != short(host)}
