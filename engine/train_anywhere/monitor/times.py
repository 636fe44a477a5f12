"""Time that the current attempt spends in each section, counted by rank 0; runs/attempts.py records it every few seconds."""

import os
import statistics
import time
from collections.abc import Collection, Mapping

from train_anywhere.files.plain_json import read_json
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.ranks import mappings, short
from train_anywhere.runs.attempts import STARTED, hosts
from train_anywhere.runs.folder import RunDir

SLOW_EVERY_S = 60.0
"""Seconds between two reads of the status files of all nodes, of which a large job has many."""


class Times:
    """Callable that returns the seconds in each section of `monitor/heartbeat.py`, and three more values.

    `before` is the time of the job before this process started. `data` is the part of `step` spent waiting for the next batch. `slow`
    is the part of `step` by which the slowest rank, whose pace all ranks follow, is slower than the median one.
    """

    def __init__(self, run: RunDir, heartbeat: Heartbeat, environ: Mapping[str, str] = os.environ) -> None:
        self.run, self.heartbeat = run, heartbeat
        began = environ.get(STARTED, "")
        self.before = max(0.0, time.time() - int(began)) if began.isdecimal() else 0.0
        self.hosts = {short(host) for host in hosts(environ)}
        # not at the start, when the files are those of an earlier attempt
        self._slow, self._read_at = 0.0, time.monotonic()

    def __call__(self) -> dict[str, float]:
        """Return the seconds so far, by name."""
        if time.monotonic() - self._read_at > SLOW_EVERY_S:
            self._slow, self._read_at = slowest_rank_wait(self.run, self.hosts), time.monotonic()
        return {"before": self.before, **self.heartbeat.spent(), "slow": self._slow}


def slowest_rank_wait(run: RunDir, nodes: Collection[str]) -> float:
    """Return the seconds by which the slowest rank's own work exceeds that of the median rank, over all steps; 0 for one rank.

    Args:
        run: the run folder.
        nodes: short names of this attempt's nodes; files of an earlier attempt's other nodes are ignored.
    """
    found = (read_json(path) for path in run.monitor.glob("ranks-*.json"))
    files = [content for content in found if short(str(content.get("host"))) in nodes]
    ranks = [
        rank for content in files for rank in mappings(content.get("ranks")) if {"own", "data"} <= rank.keys()
    ]
    work = [rank["own"] - rank["data"] for rank in ranks]
    return max(work) - statistics.median_low(work) if len(work) > 1 else 0.0
