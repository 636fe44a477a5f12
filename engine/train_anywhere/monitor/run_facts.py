"""Facts of a run, read from its folder for verdicts and the report.

Files may be incomplete or from another version of this project: values that can't be read are left out.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.ranks import mappings, short
from train_anywhere.runs.attempts import extend_newest
from train_anywhere.runs.facts import Series, curves, number, read_config, rows
from train_anywhere.runs.folder import ATTEMPTS, RunDir

WARM_UP_S = 60.0
"""Samples of the first minute are ignored: they show imports and the first compilation, not the training."""

IDLE_PERCENT = 5.0
"""GPU use in percent: NVML counts the time in which any kernel ran, so even a badly fed GPU that trains shows more."""

SUMMED = re.compile(r"cpu_use_percent|job_memory_gib|gpu\d+_(use_percent|power_w|memory_used_gib)")
"""Columns of a node's samples whose sums the sampler writes, so that a reader need not read all samples."""

MOST_CURVES, MOST_SAMPLES = 100, 800
"""Most curves in a figure, which shows the first of more, and most samples of a node that are read for a curve, evenly spread: twice the
points of a figure."""


@dataclass
class AttemptSums:
    """Sums over a column of samples, whose first and last were taken at these Unix seconds.

    `settled`, `settled_total` are number and sum of the values without those before `WARM_UP_S`; `idle` counts those below `IDLE_PERCENT`.
    """

    first: float
    last: float
    most: float
    count: float = 0.0
    total: float = 0.0
    settled: float = 0.0
    settled_total: float = 0.0
    idle: float = 0.0

    def add(self, time: float, value: float) -> None:
        """Add a sample."""
        self.last, self.most = time, max(self.most, value)
        self.count, self.total = self.count + 1, self.total + value
        if time - self.first >= WARM_UP_S:
            self.settled, self.settled_total = self.settled + 1, self.settled_total + value
            self.idle += value < IDLE_PERCENT

    @property
    def settled_mean(self) -> float:
        """The mean without the values before `WARM_UP_S`."""
        return self.settled_total / self.settled


def read_sums(facts: Mapping[str, Any]) -> dict[str, AttemptSums]:
    """Return the sums by column from the JSON file of a node's sampler. Empty if it has none."""
    try:
        return {name: AttemptSums(*map(float, values)) for name, values in facts["sums"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


@dataclass(frozen=True)
class GpuUse:
    """One GPU of the job, over the samples of its node: at most `MOST_SAMPLES` of its use in percent over Unix seconds.

    What is unknown is None: sums of the power in watts, peak memory in GiB, sums of the use of all samples.
    """

    index: int
    use: Series
    power: AttemptSums | None
    memory: float | None
    sums: AttemptSums | None = None


@dataclass(frozen=True)
class NodeUse:
    """One node of the job.

    Attributes:
        cpus: number of CPUs that the job could use there.
        cpu: use of these CPUs in percent, over Unix seconds.
        memory: peak memory of the job in GiB; None if unknown.
        memory_limit: memory limit of the job in GiB; None: no limit.
        ranks_here: numbers of the ranks that ran there; empty if unknown.
        every: seconds between two samples.
        sums: sums of the CPUs' use in all samples; None if it has no samples.
    """

    host: str
    cpus: int
    cpu: Series
    memory: float | None
    memory_limit: float | None
    gpus: tuple[GpuUse, ...] = ()
    ranks_here: tuple[int, ...] = ()
    every: float = 10.0
    sums: AttemptSums | None = None


@dataclass(frozen=True)
class Facts:
    """Facts of a run: values of metrics over the optimizer step, with nan and inf, and `watch` of `features/hangs/watch.py`."""

    info: Mapping[str, Any]
    config: Mapping[str, Any]
    metrics: Mapping[str, Series] = field(default_factory=dict)
    nodes: tuple[NodeUse, ...] = ()
    watch: Mapping[str, Any] = field(default_factory=dict)
    run: RunDir | None = None

    @property
    def present(self) -> list[NodeUse]:
        """Nodes of the newest attempt, or all if those are unknown."""
        hosts = {short(str(host)) for host in self.info.get("hosts") or ()}
        return [node for node in self.nodes if not hosts or short(node.host) in hosts]

    @property
    def attempts(self) -> list[Mapping[str, Any]]:
        """Attempts of the run, oldest first."""
        return [*self.info.get(ATTEMPTS, [])]


Describe = Callable[[Facts], tuple[list[str], dict[str, str]]]
"""`train_anywhere.features.describe`, which this package does not import: it returns the verdicts on a run and its further rows."""


def read_facts(
    run: RunDir, samples: int = MOST_CURVES, newest: Mapping[str, Mapping[str, Any]] | None = None
) -> Facts:
    """Read the facts of a run. Raises CheckpointError if run.json is damaged.

    Samples of `samples` nodes are read for curves, and of the others only the sums. `newest` is content of the nodes' JSON files, by host.
    """
    info, files = run.read_info(), sorted(run.monitor.glob("*.csv"))
    info[ATTEMPTS] = extend_newest(run, info)
    nodes = (node_use(path, at < samples, (newest or {}).get(path.stem)) for at, path in enumerate(files))
    return Facts(
        info=info,
        config=read_config(run),
        metrics=curves(run.metrics_csv),
        nodes=tuple(filter(None, nodes)),
        watch=read_json(run.monitor / "watch.json"),
        run=run,
    )


def node_use(path: Path, samples: bool, newest: Mapping[str, Any] | None) -> NodeUse | None:
    """Return the use of a node from its file of samples, if it has any."""
    facts = newest or read_json(path.with_suffix(".json"))
    sums = read_sums(facts)
    read = [row for row in rows(path, MOST_SAMPLES) if number(row.get("time")) is not None] if samples else []
    if not sums and not read:
        return None
    numbers = [n for g in mappings(facts.get("gpus")) if isinstance(n := g.get("index"), int)]
    if read:
        numbers = sorted(int(n) for n in re.findall(r"^gpu([0-9]+)_use_percent$", "\n".join(read[0]), re.M))

    def gpu_use(name: str, index: int) -> GpuUse:
        use, power = series(read, f"{name}_use_percent"), sums.get(f"{name}_power_w")
        memory = sums.get(f"{name}_memory_used_gib")
        return GpuUse(index, use, power, memory.most if memory else None, sums.get(f"{name}_use_percent"))

    memory = sums.get("job_memory_gib")
    ranks = read_json(path.with_name(f"ranks-{path.stem}.json")).get("ranks")
    return NodeUse(
        host=path.stem,
        cpus=int(number(facts.get("cpus")) or 0),
        cpu=series(read, "cpu_use_percent"),
        memory=memory.most if memory else None,
        memory_limit=number(facts.get("memory_limit_gib")),
        gpus=tuple(gpu_use(f"gpu{index}", index) for index in numbers),
        ranks_here=tuple(r["rank"] for r in mappings(ranks) if "rank" in r),
        every=number(facts.get("every_seconds")) or 10.0,
        sums=sums.get("cpu_use_percent"),
    )


def series(samples: Iterable[Mapping[str, str]], name: str) -> Series:
    """Return time and value of one column, without missing values."""
    points = ((number(row.get("time")), number(row.get(name))) for row in samples)
    return [(t, v) for t, v in points if t is not None and v is not None and math.isfinite(v)]
