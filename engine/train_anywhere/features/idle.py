"""`monitor.idle`: report GPUs of the job that do nothing in its samples.

Each node reads its newest sample and prints one line per idle time. A GPU without a reading counts as busy. Only samples count, so a
node whose sampler has died does not look idle.
"""

import math
from collections.abc import Callable
from functools import partial

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs.watch import print_line
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.ranks import ENDED, GONE, NodeRanks, mappings
from train_anywhere.runs.attempts import running_job
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path

BUSY_PERCENT = 1.0
"""Lowest use of a GPU that is not idle. Jobstats, with which sites cancel jobs, counts a GPU as idle if all readings are 0:
https://github.com/PrincetonUniversity/jobstats"""

WARN_MINUTES = 15
"""A site that cancels such jobs checks them every 15 minutes, and mails after 60: the example in
https://github.com/PrincetonUniversity/job_defense_shield, page "Cancel GPU Jobs at 0% Utilization"."""

SAMPLE_S = 60
"""Samples further apart than this show no idle time: between two of them a GPU may have worked."""


class IdleGpus(Feature):
    """Watch for GPUs that do nothing, on each node."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether GPUs are sampled, and the run may use them."""
        monitor = self.config.monitor
        on = monitor.idle == "warn" and monitor.sample_seconds is not None
        return on and self.config.trainer.accelerator not in ("cpu", "mps")

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of this node."""
        return [partial(IdleWatch, run, self.config, host)]


class IdleWatch(NodeService):
    """Service that watches the GPUs of its node."""

    every_seconds = 10.0

    def __init__(self, run: RunDir, config: Config, host: str) -> None:
        self.run, self.host, self.node = run, host, NodeRanks(run, host)
        self.longest_gap = 60 + 3 * min(config.monitor.sample_seconds or 0, SAMPLE_S)
        self._time = -math.inf
        self._since: dict[int, float] = {}
        self._reported: set[int] = set()

    def poll(self, now: float) -> None:
        """Look at a new sample, unless the ranks of the node still start."""
        ranks = [rank for rank in self.node.read() if rank.process not in (GONE, ENDED)]
        content = read_json(self.run.monitor / f"{self.host}.json")
        sample = content.get("sample")
        if not ranks or any(rank.section == "start" for rank in ranks) or not isinstance(sample, dict):
            return
        taken = float(sample.get("time") or self._time)
        if taken == self._time:
            return
        is_gap, self._time = taken - self._time > self.longest_gap, taken
        for gpu in (int(one["index"]) for one in mappings(content.get("gpus")) if "index" in one):
            use = sample.get(f"gpu{gpu}_use_percent")
            is_idle = isinstance(use, int | float) and use < BUSY_PERCENT and not is_gap
            self._since[gpu] = self._since.get(gpu, taken) if is_idle else taken
        self._report({gpu for gpu, since in self._since.items() if taken - since >= 60 * WARN_MINUTES})

    def _report(self, idle: set[int]) -> None:
        """Print GPUs that have become idle, and what to do."""
        new, self._reported = idle - self._reported, idle
        count, in_job = len(self._since), running_job() is not None
        if not new or not (in_job or len(idle) == count):  # here, other GPUs are not the run's
            return
        named = ", ".join(map(str, sorted(idle)))
        which = f"all {count} GPUs" if len(idle) == count else f"{len(idle)} of {count} GPUs ({named})"
        site = ", and many sites cancel such jobs" if in_job else ""
        run = display_path(self.run.path)
        print_line(
            f"{which} of {self.host} {'have' if len(idle) > 1 else 'has'} done nothing for {WARN_MINUTES} min{site}. "
            f"`python src/jobs.py debug {run}` shows what the ranks do; `python src/jobs.py cancel {run}` saves a checkpoint and gives "
            "the GPUs back."
        )
