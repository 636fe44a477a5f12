"""`monitor.idle`: report GPUs of the job that do nothing in its samples.

The first node reads the newest sample of each node, and prints one line per idle time of the job's GPUs. Only samples count, so a node
whose sampler has died does not look idle.
"""

import math
from collections.abc import Callable, Sequence
from itertools import compress

from train_anywhere.distributed.topology import fold_hosts
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs.watch import print_line
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.ranks import ENDED, GONE, NodeRanks, mappings, short
from train_anywhere.runs.attempts import hosts, running_job
from train_anywhere.runs.facts import number
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path

WARN_MINUTES = 15
"""A site that cancels such jobs checks them every 15 minutes, and mails after 60: the example in
https://github.com/PrincetonUniversity/job_defense_shield, page "Cancel GPU Jobs at 0% Utilization"."""


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
        names = hosts()
        return [lambda: IdleWatch(run, host, names)] if short(names[0]) == short(host) else []


class IdleWatch(NodeService):
    """Service that watches the GPUs of the nodes `names`. `host` is this node, whose ranks show whether the run still starts."""

    every_seconds = 60.0

    def __init__(self, run: RunDir, host: str, names: Sequence[str]) -> None:
        self.run, self.node, self.hosts = run, NodeRanks(run, host), {*map(short, (*names, host))}
        self._began = math.inf
        self._reported: set[tuple[str, int]] = set()

    def poll(self, now: float) -> None:
        """Look at the newest samples, unless the ranks of the node still start."""
        ranks = [rank for rank in self.node.read() if rank.process not in (GONE, ENDED)]
        starts = not ranks or any(rank.section == "start" for rank in ranks)
        self._began = math.inf if starts else min(self._began, now)
        idle, counts = dict[str, list[int]](), dict[str, int]()
        for file in sorted(self.run.monitor.glob("*.json")):
            content = read_json(file)
            sample, gpus = content.get("sample"), mappings(content.get("gpus"))
            if short(file.stem) in self.hosts and isinstance(sample, dict) and gpus:
                counts[file.stem] = len(gpus)
                # by the clock of that node
                times = [
                    (number(sample.get("time")) or 0.0) - (number(g.get("idle_since")) or math.inf)
                    for g in gpus
                ]
                long = [min(s, now - self._began) >= 60 * WARN_MINUTES for s in times]
                if any(long):
                    idle[file.stem] = [int(gpu["index"]) for gpu in compress(gpus, long)]
        self._report(idle, counts)

    def _report(self, idle: dict[str, list[int]], counts: dict[str, int]) -> None:
        """Print GPUs that have become idle, and what to do. `counts` are the numbers of GPUs by host."""
        known = {(host, gpu) for host, gpus in idle.items() for gpu in gpus}
        in_job = running_job() is not None
        self._reported &= known
        # without a job, other GPUs are not the run's
        if known == self._reported or not (in_job or len(known) == sum(counts.values())):
            return
        self._reported = known
        alike: dict[str, list[str]] = {}  # by the GPUs that are idle there
        for host, gpus in idle.items():
            some = f"{len(gpus)} of {counts[host]} GPUs ({', '.join(map(str, gpus))})"
            alike.setdefault(f"all {len(gpus)} GPUs" if len(gpus) == counts[host] else some, []).append(host)
        which = " and ".join(f"{gpus} of {fold_hosts(names)}" for gpus, names in alike.items())
        site = ", and many sites cancel such jobs" if in_job else ""
        run = display_path(self.run.path)
        print_line(
            f"{which} {'have' if len(known) > 1 else 'has'} done nothing for {WARN_MINUTES} min{site}. "
            f"`python src/jobs.py debug {run}` shows what the ranks do; `python src/jobs.py cancel {run}` saves a checkpoint and gives "
            "the GPUs back."
        )
