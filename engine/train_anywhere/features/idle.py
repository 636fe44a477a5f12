"""`monitor.idle`: report GPUs of the job that do nothing in its samples.

The first node reads the newest sample of each node, and prints one line per idle time of the job's GPUs. A GPU without a reading counts as
busy. Only samples count, so a node whose sampler has died does not look idle.
"""

import math
import os
from collections.abc import Callable, Iterator
from functools import partial

from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.distributed.topology import fold_hosts
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs.watch import print_line
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.ranks import ENDED, GONE, NodeRanks, mappings, short
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


READS_PER_S = 20
"""Most samples of nodes that are read each second."""


class IdleGpus(Feature):
    """Watch for GPUs that do nothing, on the first node."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether GPUs are sampled, and the run may use them."""
        monitor = self.config.monitor
        on = monitor.idle == "warn" and monitor.sample_seconds is not None
        return on and self.config.trainer.accelerator not in ("cpu", "mps")

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch, on the first node."""
        hosts = [*dict.fromkeys(hosts_by_rank(os.environ.get("TRAIN_HOSTS", "")).values())] or [host]
        is_first = short(hosts[0]) == short(host)
        return [partial(IdleWatch, run, self.config, host, len(hosts))] if is_first else []


class IdleWatch(NodeService):
    """Service that watches the GPUs of all nodes.

    Args:
        host: name of this node, whose ranks show whether the run still starts.
        nodes: number of nodes.
    """

    every_seconds = 10.0

    def __init__(self, run: RunDir, config: Config, host: str, nodes: int = 1) -> None:
        self.run, self.node = run, NodeRanks(run, host)
        self.every_seconds = max(self.every_seconds, nodes / READS_PER_S)
        self.longest_gap = 60 + 3 * min(config.monitor.sample_seconds or 0, SAMPLE_S)
        # nodes take their samples at different times
        self._wait = self.longest_gap if nodes > 1 else 0
        self._times: dict[str, float] = {}
        self._since: dict[str, dict[int, float]] = {}
        self._reported: set[tuple[str, int]] = set()

    def poll(self, now: float) -> None:
        """Look at new samples, unless the ranks of the node still start."""
        ranks = [rank for rank in self.node.read() if rank.process not in (GONE, ENDED)]
        if not ranks or any(rank.section == "start" for rank in ranks):
            return
        for file in self.run.monitor.glob("*.json"):
            content = read_json(file)
            sample, before = content.get("sample"), self._times.get(file.stem, -math.inf)
            if not isinstance(sample, dict) or (taken := float(sample.get("time") or before)) == before:
                continue
            is_gap, self._times[file.stem] = taken - before > self.longest_gap, taken
            since = self._since.setdefault(file.stem, {})
            for gpu in (int(one["index"]) for one in mappings(content.get("gpus")) if "index" in one):
                use = sample.get(f"gpu{gpu}_use_percent")
                is_idle = isinstance(use, int | float) and use < BUSY_PERCENT and not is_gap
                since[gpu] = since.get(gpu, taken) if is_idle else taken
        self._report(dict(self._idle(0)), dict(self._idle(self._wait)))

    def _idle(self, more: float) -> Iterator[tuple[str, set[int]]]:
        """Yield the hosts with the GPUs that have done nothing for `WARN_MINUTES` and `more` seconds."""
        for host, since in sorted(self._since.items()):
            if idle := {n for n, at in since.items() if self._times[host] - at >= 60 * WARN_MINUTES + more}:
                yield host, idle

    def _report(self, idle: dict[str, set[int]], long: dict[str, set[int]]) -> None:
        """Print GPUs that have become idle, and what to do. `long` are those that have waited for others."""
        known = {(host, gpu) for host, gpus in idle.items() for gpu in gpus}
        self._reported &= known
        new = {(host, gpu) for host, gpus in long.items() for gpu in gpus} - self._reported
        in_job = running_job() is not None
        every = all(idle.get(host) == {*since} for host, since in self._since.items())
        if not new or not (in_job or every):  # here, other GPUs are not the run's
            return
        self._reported = known
        hosts: dict[str, list[str]] = {}  # by the GPUs that are idle there
        for host, gpus in idle.items():
            count, named = len(self._since[host]), ", ".join(map(str, sorted(gpus)))
            some = f"{len(gpus)} of {count} GPUs ({named})"
            hosts.setdefault(f"all {count} GPUs" if len(gpus) == count else some, []).append(host)
        which = " and ".join(f"{gpus} of {fold_hosts(names)}" for gpus, names in hosts.items())
        site = ", and many sites cancel such jobs" if in_job else ""
        run = display_path(self.run.path)
        print_line(
            f"{which} {'have' if len(known) > 1 else 'has'} done nothing for {WARN_MINUTES} min{site}. "
            f"`python src/jobs.py debug {run}` shows what the ranks do; `python src/jobs.py cancel {run}` saves a checkpoint and gives "
            "the GPUs back."
        )
