"""`monitor.idle`: report GPUs of the job that do nothing in its samples.

The first node reads the newest sample of each node and prints one line per idle time.
A GPU without a reading counts as busy. Only samples count, so a node whose monitor has died does not look idle.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs.rank_watch import WRITES_PER_S
from train_anywhere.features.hangs.supervisor import print_line, unwatched_ranks
from train_anywhere.features.serve import is_first
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.ranks import ENDED, GONE, NodeRanks, mappings
from train_anywhere.runs.attempts import hosts, running_job
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path

BUSY_PERCENT = 1.0
"""Lowest use of a GPU that is not idle. Jobstats, with which sites cancel jobs, counts a GPU as idle if all readings are 0:
https://github.com/PrincetonUniversity/jobstats"""

WARN_MINUTES = 15
"""A site that cancels such jobs checks them every 15 minutes, and mails after 60: the example in
https://github.com/PrincetonUniversity/job_defense_shield, page "Cancel GPU Jobs at 0% Utilization"."""

GAP_S = 60.0
"""A node without samples for this much longer than expected may have worked meanwhile."""

SAMPLE_S = 60
"""Samples further apart than this show no idle time: between two of them a GPU may have worked."""

EVERY_S = 10.0
"""Least seconds between two looks, which is the default interval of the samples."""

Gpu = tuple[str, int]
"""Host and number of a GPU."""


class IdleWatch(NodeService):
    """Service that watches the GPUs, on the first node."""

    def __init__(
        self, run: RunDir, config: Config, host: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.run, self.first = run, is_first(host)
        self.every_seconds = max(EVERY_S, len(hosts(environ)) / WRITES_PER_S)
        self.node = NodeRanks(run, host)
        self.in_job = bool(running_job(environ))
        # on PBS the other nodes have no monitor
        others = unwatched_ranks(hosts_by_rank(environ.get("TRAIN_HOSTS", "")), host, environ)
        self.where = " of the first node" if others else ""
        sampled = min(config.monitor.sample_seconds or 0, SAMPLE_S)
        self.longest_gap = GAP_S + 3 * sampled + 2 * self.every_seconds
        self._samples = {name: sample for name, sample, _ in self._read()}
        self._spans: dict[Gpu, tuple[float, float]] = {}
        self._reported: set[Gpu] = set()

    def poll(self, now: float) -> None:
        """Look at new samples, on the first node. Raises OSError."""
        if not self.first:
            return
        ranks = [rank for rank in self.node.read() if rank.process not in (GONE, ENDED)]
        if ranks and all(rank.section != "start" for rank in ranks):
            self._add_samples(time.monotonic())
            self._report()

    def _add_samples(self, now: float) -> None:
        """Update the idle time of each GPU, from its first to its newest idle sample."""
        for host, moment, content in self._read():
            if self._samples.get(host) == moment:
                continue
            self._samples[host] = moment
            for gpu in (int(one["index"]) for one in mappings(content.get("gpus")) if "index" in one):
                use = content["sample"].get(f"gpu{gpu}_use_percent")
                begin, last = self._spans.get((host, gpu), (now, now))
                idle = isinstance(use, int | float) and use < BUSY_PERCENT
                self._spans[host, gpu] = (begin if idle and now - last <= self.longest_gap else now, now)

    def _report(self) -> None:
        """Print GPUs that have become idle."""
        lengths = {gpu: (last - begin) / 60 for gpu, (begin, last) in self._spans.items()}
        idle = {gpu for gpu, minutes in lengths.items() if minutes >= WARN_MINUTES}
        new, self._reported = idle - self._reported, idle
        if new and (self.in_job or len(idle) == len(lengths)):  # here, other GPUs are not the run's
            print_line(self._describe(sorted(idle), len(lengths)))

    def _describe(self, idle: list[Gpu], number: int) -> str:
        """Return the line for the log: which GPUs are idle, and what to do."""
        if len(idle) == number:
            which = f"all {number} GPUs{self.where} have" if number > 1 else f"the GPU{self.where} has"
        else:
            named = ", ".join([f"GPU {gpu} of {host}" for host, gpu in idle[:4]] + ["..."] * (len(idle) > 4))
            which = f"{len(idle)} of {number} GPUs ({named}) {'have' if len(idle) > 1 else 'has'}"
        site = ", and many sites cancel such jobs" if self.in_job else ""
        run = display_path(self.run.path)
        return (
            f"{which} done nothing for {WARN_MINUTES} min{site}. `python src/jobs.py debug {run}` shows what the ranks do; "
            f"`python src/jobs.py cancel {run}` saves a checkpoint and gives the GPUs back."
        )

    def _read(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield host, time and content of the newest sample of each node of the job."""
        for path in sorted(self.run.monitor.glob("*.csv")) if self.first else ():
            content = read_json(path.with_suffix(".json"))
            if isinstance(content.get("sample"), dict):
                yield path.stem, content["sample"].get("time"), content


class IdleGpus(Feature):
    """Watch for GPUs that do nothing, in the samples of all nodes."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether GPUs are sampled, and the run may use them."""
        monitor = self.config.monitor
        on = monitor.idle == "warn" and monitor.sample_seconds is not None
        return on and self.config.trainer.accelerator not in ("cpu", "mps")

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of this node."""
        return [lambda: IdleWatch(run, self.config, host)]
