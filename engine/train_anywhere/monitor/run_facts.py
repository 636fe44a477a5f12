"""Facts of a run, read from its folder for verdicts and the report.

Files may be incomplete or from another version of this project: values that can't be read are left out.
"""

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.files.atomic import read_text
from train_anywhere.monitor.ranks import mappings, read_json, short
from train_anywhere.runs.attempts import with_script_ends, with_times
from train_anywhere.runs.folder import ATTEMPTS, RunDir

Series = list[tuple[float, float]]
"""Points (x, y) of a curve."""


WARM_UP_S = 60.0
"""Samples of the first minute are ignored: they show imports and the first compilation, not the training."""

IDLE_PERCENT = 5.0
"""GPU use in percent: NVML counts the time in which any kernel ran, so even a badly fed GPU that trains shows more."""

SUMMED = re.compile(r"cpu_use_percent|job_memory_gib|gpu(\d+)_use_percent")
"""Columns of a node's samples whose sums the sampler writes, so that `status` need not read all samples."""


@dataclass
class Sums:
    """Sums over a column of samples.

    Attributes:
        first: Unix seconds of the first sample.
        most: largest value.
        count, total: number and sum of the values after `WARM_UP_S`.
        idle: number of those below `IDLE_PERCENT`.
    """

    first: float
    most: float
    count: float = 0.0
    total: float = 0.0
    idle: float = 0.0

    def add(self, time: float, value: float) -> None:
        """Add a sample."""
        self.most = max(self.most, value)
        if time - self.first >= WARM_UP_S:
            self.count, self.total = self.count + 1, self.total + value
            self.idle += value < IDLE_PERCENT


def sum_up(samples: Iterable[Mapping[str, Any]], sums: dict[str, Sums]) -> dict[str, Sums]:
    """Add samples to the sums by column, and return them."""
    for row in samples:
        for name in filter(SUMMED.fullmatch, row):
            time, value = number(row.get("time")), number(row[name])
            if time is not None and value is not None and math.isfinite(value):
                sums.setdefault(name, Sums(time, value)).add(time, value)
    return sums


@dataclass(frozen=True)
class GpuUse:
    """One GPU of the job, over the samples of its node.

    Attributes:
        index: number of the GPU on its node.
        use: use in percent over Unix seconds.
        power: power in watts over Unix seconds.
        memory: peak memory in GiB; None if unknown.
        sums: sums over `use`; None if it has no samples.
    """

    index: int
    use: Series
    power: Series
    memory: float | None
    sums: Sums | None = None


@dataclass(frozen=True)
class NodeUse:
    """One node of the job.

    Attributes:
        host: name of the node.
        cpus: number of CPUs that the job could use there.
        cpu: use of these CPUs in percent, over Unix seconds.
        memory: peak memory of the job in GiB; None if unknown.
        memory_limit: memory limit of the job in GiB; None: no limit.
        gpus: the job's GPUs on the node.
        ranks_here: numbers of the ranks that ran there; empty if unknown.
        every: seconds between two samples.
        sums: sums over `cpu`; None if it has no samples.
    """

    host: str
    cpus: int
    cpu: Series
    memory: float | None
    memory_limit: float | None
    gpus: tuple[GpuUse, ...] = ()
    ranks_here: tuple[int, ...] = ()
    every: float = 10.0
    sums: Sums | None = None

    @property
    def ranks(self) -> int | None:
        """Number of ranks that ran there; None if unknown."""
        return len(self.ranks_here) or None


@dataclass(frozen=True)
class Facts:
    """Facts of a run.

    Attributes:
        info: content of run.json.
        config: content of config.yaml.
        metrics: values over the optimizer step, by metric name; includes nan and inf.
        nodes: nodes of all attempts.
        watch: content of watch.json, see `features/hangs/supervisor.py`.
        run: the run folder, for features that read other files of it.
    """

    info: Mapping[str, Any]
    config: Mapping[str, Any]
    metrics: Mapping[str, Series] = field(default_factory=dict)
    nodes: tuple[NodeUse, ...] = ()
    watch: Mapping[str, Any] = field(default_factory=dict)
    run: RunDir | None = None

    @property
    def present(self) -> list[NodeUse]:
        """Nodes of the newest attempt; all nodes, if those are unknown."""
        hosts = {short(str(host)) for host in self.info.get("hosts") or ()}
        return [node for node in self.nodes if not hosts or short(node.host) in hosts]

    @property
    def attempts(self) -> list[Mapping[str, Any]]:
        """Attempts of the run, oldest first."""
        return [*self.info.get(ATTEMPTS, [])]


def read_facts(run: RunDir, samples: bool = True) -> Facts:
    """Read the facts of a run. Raises CheckpointError if run.json is damaged.

    Args:
        run: the run folder.
        samples: whether to read all samples of the nodes; otherwise only their sums are known.
    """
    folder, info = run.monitor, run.read_info()
    if attempts := info.get(ATTEMPTS):
        info[ATTEMPTS] = with_script_ends(run, [*attempts[:-1], with_times(run, attempts[-1])])
    try:
        config = yaml.safe_load(read_text(run.config))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        config = {}
    return Facts(
        info=info,
        config=config if isinstance(config, dict) else {},
        metrics=curves(run.metrics_csv),
        nodes=tuple(
            node for path in sorted(folder.glob("*.csv")) if (node := (node_use if samples else node_sums)(path))
        ),
        watch=read_json(folder / "watch.json"),
        run=run,
    )


def curves(path: Path) -> dict[str, Series]:
    """Return the columns of metrics.csv over the optimizer step."""
    found: dict[str, Series] = {}
    for row in rows(path):
        step = number(row.get("step"))
        for name, text in row.items():
            value = number(text)
            if step is not None and value is not None and name not in ("step", "epoch"):
                found.setdefault(name, []).append((step, value))
    return found


def node_use(path: Path) -> NodeUse | None:
    """Return the use of a node from its file of samples; None if that has no samples."""
    samples = [row for row in rows(path) if number(row.get("time")) is not None]
    if not samples:
        return None
    sums = sum_up(samples, {})
    gpus = tuple(gpu_use(samples, index, sums) for index in gpu_numbers(samples[0]))
    return make_node(path, sums, series(samples, "cpu_use_percent"), gpus)


def node_sums(path: Path) -> NodeUse | None:
    """Return the use of a node from the sums of its sampler, without samples; from its samples if there are no sums."""
    try:
        written = read_json(path.with_suffix(".json"))["sums"].items()
        sums = {name: Sums(*map(float, values)) for name, values in written}
    except (AttributeError, KeyError, TypeError, ValueError):
        return node_use(path)
    gpus = ((match[1], name) for name in sums if (match := SUMMED.fullmatch(name)) and match[1])
    return make_node(path, sums, [], tuple(GpuUse(int(i), [], [], None, sums[name]) for i, name in gpus))


def make_node(path: Path, sums: Mapping[str, Sums], cpu: Series, gpus: tuple[GpuUse, ...]) -> NodeUse:
    """Return the use of the node with the samples in `path`."""
    facts = read_json(path.with_suffix(".json"))
    ranks = read_json(path.with_name(f"ranks-{path.stem}.json")).get("ranks")
    return NodeUse(
        host=path.stem,
        cpus=int(number(facts.get("cpus")) or 0),
        cpu=cpu,
        memory=sums["job_memory_gib"].most if "job_memory_gib" in sums else None,
        memory_limit=number(facts.get("memory_limit_gib")),
        gpus=gpus,
        ranks_here=tuple(r["rank"] for r in mappings(ranks) if "rank" in r),
        every=number(facts.get("every_seconds")) or 10.0,
        sums=sums.get("cpu_use_percent"),
    )


def gpu_numbers(row: Mapping[str, str]) -> list[int]:
    """Return the numbers of the GPUs with columns such as gpu0_use_percent."""
    ending = "_use_percent"
    numbers = [
        n.removeprefix("gpu").removesuffix(ending) for n in row if n.startswith("gpu") and n.endswith(ending)
    ]
    return sorted(int(n) for n in numbers if n.isdecimal())


def gpu_use(samples: list[dict[str, str]], index: int, sums: Mapping[str, Sums]) -> GpuUse:
    """Return the use of one GPU over the samples."""
    name, used = f"gpu{index}_use_percent", [value for _, value in series(samples, f"gpu{index}_memory_used_gib")]
    power = series(samples, f"gpu{index}_power_w")
    return GpuUse(index, series(samples, name), power, max(used, default=None), sums.get(name))


def series(samples: Iterable[Mapping[str, str]], name: str) -> Series:
    """Return time and value of one column, without missing values."""
    points = ((number(row.get("time")), number(row.get(name))) for row in samples)
    return [(t, v) for t, v in points if t is not None and v is not None and math.isfinite(v)]


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; empty if it can't be read."""
    try:
        return [*csv.DictReader(read_text(path).splitlines())]
    except (OSError, ValueError, csv.Error):
        return []


def number(value: object) -> float | None:
    """Return a value of a CSV or JSON file as a number; None if it is not one."""
    try:
        return float(value) if isinstance(value, str | int | float) and value != "" else None
    except ValueError:
        return None


def mean(points: Series) -> float | None:
    """Return the mean of a curve's values; None for an empty curve."""
    return sum(value for _, value in points) / len(points) if points else None
