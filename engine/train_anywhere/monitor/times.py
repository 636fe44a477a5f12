"""Where the time of the present attempt goes, counted by rank 0: runs/attempts.py records it every few seconds."""

import os
import statistics
import time
from collections.abc import Collection, Mapping

from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.monitor.ranks import mappings, read_json, short
from train_anywhere.runs.attempts import STARTED, hosts
from train_anywhere.runs.folder import RunDir

SLOW_EVERY_S = 60.0
"""Seconds between two looks at what the side processes of all nodes have written: a large job has a file for each node."""


class Times:
    """Seconds in each section of `monitor/heartbeat.py`, and three more.

    `before`: of the job, until this process began. `data`: of `step`, the wait for the next batch. `slow`: of `step`, the wait
    for the slowest rank, as far as it is slower than the middle one; all ranks train at its pace.
    """

    def __init__(self, run: RunDir, environ: Mapping[str, str] = os.environ) -> None:
        self.run = run
        began = environ.get(STARTED, "")
        self.before = max(0.0, time.time() - int(began)) if began.isdecimal() else 0.0
        self.hosts = {short(host) for host in hosts(environ)}
        # not at once: what is there then is of an earlier attempt
        self._slow, self._looked = 0.0, time.monotonic()

    def __call__(self) -> dict[str, float]:
        """The seconds so far, by name."""
        if time.monotonic() - self._looked > SLOW_EVERY_S:
            self._slow, self._looked = waited_for_slowest(self.run, self.hosts), time.monotonic()
        return {"before": self.before, **heartbeat.spent(), "slow": self._slow}


def waited_for_slowest(run: RunDir, nodes: Collection[str]) -> float:
    """Seconds by which the own work of the slowest rank exceeds that of the middle one, over all steps; 0 for a single rank.

    Args:
        nodes: of this attempt, by their short names; the files of an earlier attempt's nodes stay in the folder.
    """
    found = (read_json(path) for path in run.monitor.glob("ranks-*.json"))
    files = [content for content in found if short(str(content.get("host"))) in nodes]
    ranks = [
        rank for content in files for rank in mappings(content.get("ranks")) if {"own", "data"} <= rank.keys()
    ]
    work = [rank["own"] - rank["data"] for rank in ranks]
    return max(work) - statistics.median_low(work) if len(work) > 1 else 0.0
