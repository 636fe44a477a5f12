"""Samples of a node's CPUs, memory and GPUs (`monitor.sample_seconds`), and GPUs of the job that do nothing in them (`monitor.idle`).

Each node writes RUN/monitor/<host>.csv and <host>.json. The first one reads the newest sample of each node, and prints one line per idle
time of the job's GPUs. Only samples count, so a node whose sampler has died does not look idle.
"""

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from train_anywhere.config.schema import Monitor
from train_anywhere.distributed.layout import cuda_visible_devices, usable_cpus
from train_anywhere.distributed.topology import fold_hosts
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs.watch import print_line
from train_anywhere.files.atomic import dumps, make_folder, read_json, write_atomic
from train_anywhere.monitor.ranks import ENDED, GONE, NodeRanks, mappings, short
from train_anywhere.monitor.run_facts import SUMMED, AttemptSums, read_sums
from train_anywhere.runs.attempts import hosts, running_job
from train_anywhere.runs.facts import number
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.runs.summary import display_path

try:
    import psutil
except ImportError:  # in a container, which then has no samples
    psutil = None  # type: ignore[assignment]

GIB = 1 << 30

JOB = re.compile(r"^(?P<number>\d+):(?P<kinds>[^:]*):(?P<path>.*?/job_\d+)(/|$)", re.M)
"""The line of a Slurm job in /proc/self/cgroup; cgroups of its steps are below the job's: https://slurm.schedmd.com/cgroup_v2.html"""

RESIDENT = {"anon", "shmem", "total_rss", "total_shmem"}
"""Rows of a cgroup's memory.stat (version 2, then 1) to add up: memory that can't be reclaimed, so no file cache or kernel memory."""

SHORTEST_S = 0.5
"""Seconds over which the use of CPUs is measured at least."""


class Machine:
    """The node of this process.

    Args:
        mark: argument in the command line of the job's ranks, to find its processes without a cgroup.
        cgroups, proc: where these file systems are mounted.
    """

    def __init__(self, mark: str, cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self.mark = mark
        self.cpus = usable_cpus()
        self.cgroup = job_cgroup(proc, cgroups)
        self._before = math.inf

    def facts(self) -> dict[str, float | None]:
        """Return constant facts: the job's CPUs here, the node's memory, and the job's limit."""
        limit, whole = None, psutil.virtual_memory().total
        for name in ("memory.limit_in_bytes", "memory.max"):
            with suppress(OSError, ValueError, TypeError):
                found = int((self.cgroup / name).read_text())  # type: ignore[operator]
                limit = found / GIB if found < whole else None
        return {"cpus": len(self.cpus), "memory_gib": whole / GIB, "memory_limit_gib": limit}

    def sample(self) -> dict[str, float | None]:
        """Return the use of CPUs since the last call, which one thread makes, and of memory."""
        use = psutil.cpu_percent(percpu=True)
        before, self._before = self._before, time.monotonic()
        job_use = [use[cpu] for cpu in self.cpus if cpu < len(use)]
        # at the first call psutil returns 0, and over a short time it counts too few ticks
        unknown = not job_use or self._before - before < SHORTEST_S
        return {
            "cpu_use_percent": None if unknown else sum(job_use) / len(job_use),
            "memory_used_gib": psutil.virtual_memory().used / GIB,
            "job_memory_gib": self.job_memory() / GIB,
        }

    def job_memory(self) -> int:
        """Return the bytes of memory that the job's processes use on this node."""
        if self.cgroup:
            with suppress(OSError, ValueError):
                rows = (line.split() for line in (self.cgroup / "memory.stat").read_text().splitlines())
                return sum(int(value) for name, value in rows if name in RESIDENT)
        used = 0
        for process in job_processes(self.mark).values():
            with suppress(psutil.Error):
                memory = process.memory_info()  # shared memory and pages of files do not count
                used += memory.rss - getattr(memory, "shared", 0)
        return used


def job_cgroup(proc: Path, cgroups: Path) -> Path | None:
    """Return the folder of the job's memory cgroup, if there is one."""
    with suppress(OSError):
        for found in JOB.finditer((proc / "self" / "cgroup").read_text()):
            kinds = found["kinds"].split(",")
            if found["number"] == "0" or "memory" in kinds:
                folder = cgroups / ("" if found["number"] == "0" else "memory") / found["path"].lstrip("/")
                return folder if (folder / "memory.stat").is_file() else None
    return None


def job_processes(mark: str) -> "dict[int, psutil.Process]":
    """Return the marked ranks and their descendants by process id, without this process."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        trains = any(word.endswith("src/train.py") for word in words)
        if trains and (mark in words or process.pid == os.getppid()):
            with suppress(psutil.Error):
                found |= {one.pid: one for one in (process, *process.children(recursive=True))}
    found.pop(os.getpid(), None)
    return found


@dataclass(frozen=True)
class Gpu:
    """State of one GPU. Values are None if the driver does not report them."""

    index: int
    uuid: str
    name: str
    memory_gib: float | None = None
    use_percent: float | None = None
    memory_used_gib: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


def reader() -> Callable[[], list[Gpu]]:
    """Return a function that returns the GPUs of this job, empty without NVIDIA's driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or one of another version
        return list
    return lambda: visible_gpus(
        [_read_nvml(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())], os.environ
    )


def visible_gpus(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names. All if it is not set or matches none.

    Schedulers set it for the processes of a job. If they also hide other GPUs (Slurm with ConstrainDevices), the driver and
    CUDA_VISIBLE_DEVICES use the same numbers, from 0: https://slurm.schedmd.com/gres.html#GPU_Management
    """
    listed = cuda_visible_devices(environ)
    if listed is None:
        return gpus
    return [g for g in gpus if str(g.index) in listed or g.uuid in listed] or (gpus if listed else [])


def _read_nvml(nvml: Any, index: int) -> Gpu:
    def query(function: Callable[..., Any], *more: Any) -> Any:
        try:
            return function(handle, *more)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return Gpu(index, "", "")
    memory, use = query(nvml.nvmlDeviceGetMemoryInfo), query(nvml.nvmlDeviceGetUtilizationRates)
    milliwatts = query(nvml.nvmlDeviceGetPowerUsage)
    return Gpu(
        index,
        query(nvml.nvmlDeviceGetUUID) or "",
        query(nvml.nvmlDeviceGetName) or "",
        memory_gib=memory and memory.total / GIB,
        use_percent=use and float(use.gpu),
        memory_used_gib=memory and memory.used / GIB,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=query(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
    )


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
        """Return the sampler, and on the first node the watch for GPUs that do nothing, if the run may use them."""
        monitor, trainer, names = self.config.monitor, self.config.trainer, hosts()
        services: list[Callable[[], NodeService]] = [lambda: Sampler(run, monitor, trainer.max_nodes, host)]
        if (
            monitor.idle == "warn"
            and trainer.accelerator not in ("cpu", "mps")
            and short(names[0]) == short(host)
        ):
            services.append(lambda: IdleWatch(run, host, names))
        return services


class Sampler(NodeService):
    """Service that takes a sample of this node every few seconds."""

    def __init__(self, run: RunDir, config: Monitor, nodes: int, name: str) -> None:
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


def columns(found: list[Gpu]) -> dict[str, float | None]:
    """Return the values of all GPUs by column: gpu0_use_percent, gpu0_memory_used_gib, ..."""
    return {f"gpu{g.index}_{name}": asdict(g)[name] for g in found for name in GPU_COLUMNS}


WARN_MINUTES = 15
"""A site that cancels such jobs checks them every 15 minutes, and mails after 60: the example in
https://github.com/PrincetonUniversity/job_defense_shield, page "Cancel GPU Jobs at 0% Utilization"."""


class IdleWatch(NodeService):
    """Service that watches the GPUs of the nodes `names`. `host` is this node, whose ranks show whether the run still starts."""

    every_seconds = 60.0

    def __init__(self, run: RunDir, host: str, names: Sequence[str]) -> None:
        self.run, self.node, self.hosts = run, NodeRanks(run, host), {*map(short, (*names, host))}
        self._began = math.inf
        self._reported: set[tuple[str, int]] = set()

    def poll(self, now: float) -> None:
        """Print GPUs that have become idle, and what to do, unless the ranks of the node still start."""
        ranks = [rank for rank in self.node.read() if rank.process not in (GONE, ENDED)]
        starts = not ranks or any(rank.section == "start" for rank in ranks)
        self._began = math.inf if starts else min(self._began, now)
        known, count = set[tuple[str, int]](), 0
        alike: dict[str, list[str]] = {}  # nodes by the GPUs that are idle there
        for file in sorted(self.run.monitor.glob("*.json")):
            content = read_json(file)
            sample, gpus = content.get("sample"), mappings(content.get("gpus"))
            if short(file.stem) not in self.hosts or not isinstance(sample, dict):
                continue
            since = {int(gpu["index"]): number(gpu.get("idle_since")) or math.inf for gpu in gpus}
            taken = number(sample.get("time")) or 0.0  # by the clock of that node
            idle = [n for n, at in since.items() if min(taken - at, now - self._began) >= 60 * WARN_MINUTES]
            known |= {(file.stem, gpu) for gpu in idle}
            count += len(gpus)
            if idle:
                some = f"{len(idle)} of {len(gpus)} GPUs ({', '.join(map(str, idle))})"
                what = f"all {len(gpus)} GPUs" if len(idle) == len(gpus) else some
                alike.setdefault(what, []).append(file.stem)
        in_job = running_job() is not None
        self._reported &= known
        # without a job, other GPUs are not the run's
        if known == self._reported or not (in_job or len(known) == count):
            return
        self._reported = known
        which = " and ".join(f"{gpus} of {fold_hosts(names)}" for gpus, names in alike.items())
        site = ", and many sites cancel such jobs" if in_job else ""
        run = display_path(self.run.path)
        print_line(
            f"{which} {'have' if len(known) > 1 else 'has'} done nothing for {WARN_MINUTES} min{site}. "
            f"`python src/jobs.py debug {run}` shows what the ranks do; `python src/jobs.py cancel {run}` saves a checkpoint and gives "
            "the GPUs back."
        )
