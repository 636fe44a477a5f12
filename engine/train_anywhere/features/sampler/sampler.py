"""Sample one node into RUN/monitor/<host>.csv and <host>.json."""

import math
from collections.abc import Callable
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING

from train_anywhere.config.schema import Monitor
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.files.atomic import dumps, make_folder, read_json, write_atomic
from train_anywhere.monitor.run_facts import SUMMED, AttemptSums, read_sums
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.metrics_csv import CsvLog

if TYPE_CHECKING:
    from train_anywhere.features.sampler.machine import Gpu

WRITERS_PER_S = 10
"""Largest number of files per second that all nodes together write: of 1,000 nodes, each takes a sample every 100 s."""

BUSY_PERCENT = 1.0
"""Lowest use of a GPU that is not idle. Jobstats, with which sites cancel jobs, counts a GPU as idle if all readings are 0:
https://github.com/PrincetonUniversity/jobstats. One without a reading counts as busy."""

GPU_COLUMNS = ("use_percent", "memory_used_gib", "power_w", "temperature_c")


class SampleNodes(Feature):
    """Sample the hardware use of each node while the run trains."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether `monitor.sample_seconds` is set."""
        return self.config.monitor.sample_seconds is not None

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the sampler."""
        return [lambda: Sampler(run, self.config.monitor, self.config.trainer.max_nodes, host)]


class Sampler(NodeService):
    """Service that takes a sample of this node every few seconds."""

    def __init__(self, run: RunDir, config: Monitor, nodes: int, name: str) -> None:
        from train_anywhere.features.sampler.machine import Machine, reader  # a container may have no psutil

        self.every_seconds = max(config.sample_seconds or 0.0, nodes / WRITERS_PER_S)
        self.newest, self.table = run.monitor / f"{name}.json", list[CsvLog]()
        self.machine, self.read_gpus = Machine(str(run.path)), reader()
        self.idle_since: dict[int, float] = {}
        self._before = 0.0
        self.facts = {"host": name, "every_seconds": self.every_seconds, **self.machine.facts()}
        self.sums = read_sums(read_json(self.newest))  # of earlier attempts on this node

    def poll(self, now: float) -> None:
        """Take a sample and write it. Raises OSError if the write fails."""
        found = self.read_gpus()
        sample = {"time": now, **self.machine.sample(), **columns(found)}
        sample = {name: value if value is None else round(value, 3) for name, value in sample.items()}
        if now - self._before > 60 + 3 * min(self.every_seconds, 60):  # the GPUs may have worked in between
            self.idle_since = {}
        self._before = now
        idle = [g.index for g in found if g.use_percent is not None and g.use_percent < BUSY_PERCENT]
        self.idle_since = {n: self.idle_since.get(n, now) for n in idle}
        quiet = self.idle_since.get
        known = [
            {"index": g.index, "name": g.name, "memory_gib": g.memory_gib, "idle_since": quiet(g.index)}
            for g in found
        ]
        make_folder(self.newest.parent)
        self.table = self.table or [CsvLog(self.newest.with_suffix(".csv"), sample, ("time",))]
        self.table[0].append({name: "" if value is None else str(value) for name, value in sample.items()})
        for name in filter(SUMMED.fullmatch, sample):
            if (value := sample[name]) is not None and math.isfinite(value):
                self.sums.setdefault(name, AttemptSums(now, now, value)).add(now, value)
        sums = {name: astuple(values) for name, values in self.sums.items()}
        write_atomic(self.newest, dumps({**self.facts, "gpus": known, "sample": sample, "sums": sums}))


def columns(found: "list[Gpu]") -> dict[str, float | None]:
    """Return the values of all GPUs by column: gpu0_use_percent, gpu0_memory_used_gib, ..."""
    return {f"gpu{g.index}_{name}": asdict(g)[name] for g in found for name in GPU_COLUMNS}
