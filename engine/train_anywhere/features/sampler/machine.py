"""Measure the use of this node's CPUs, memory and GPUs."""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from train_anywhere.distributed.layout import cuda_visible_devices

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
        psutil.cpu_percent(percpu=True)  # each call returns the use since the previous one of the same thread
        self._thread = threading.get_ident()
        self._before = time.monotonic()

    def facts(self) -> dict[str, float | None]:
        """Return constant facts: the job's CPUs here, the node's memory, and the job's limit."""
        limit, whole = None, psutil.virtual_memory().total
        for name in ("memory.limit_in_bytes", "memory.max"):
            with suppress(OSError, ValueError, TypeError):
                found = int((self.cgroup / name).read_text())  # type: ignore[operator]
                limit = found / GIB if found < whole else None
        return {"cpus": len(self.cpus), "memory_gib": whole / GIB, "memory_limit_gib": limit}

    def sample(self) -> dict[str, float | None]:
        """Return the use of CPUs since the last call, and of memory."""
        use, me = psutil.cpu_percent(percpu=True), threading.get_ident()
        first, self._thread = me != self._thread, me
        before, self._before = self._before, time.monotonic()
        job_use = [use[cpu] for cpu in self.cpus if cpu < len(use)]
        # over a shorter time psutil counts too few ticks
        unknown = first or not job_use or self._before - before < SHORTEST_S
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


def usable_cpus() -> list[int]:
    """Return the CPUs that this process may run on, which are the job's."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def job_cgroup(proc: Path, cgroups: Path) -> Path | None:
    """Return the folder of the job's memory cgroup, if there is one."""
    with suppress(OSError):
        for found in JOB.finditer((proc / "self" / "cgroup").read_text()):
            kinds = found["kinds"].split(",")
            if found["number"] == "0" or "memory" in kinds:
                folder = cgroups / ("" if found["number"] == "0" else "memory") / found["path"].lstrip("/")
                return folder if (folder / "memory.stat").is_file() else None
    return None


def job_processes(mark: str) -> dict[int, psutil.Process]:
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
        _decode(query(nvml.nvmlDeviceGetUUID)),
        _decode(query(nvml.nvmlDeviceGetName)),
        memory_gib=memory and memory.total / GIB,
        use_percent=use and float(use.gpu),
        memory_used_gib=memory and memory.used / GIB,
        power_w=None if milliwatts is None else milliwatts / 1000,
        temperature_c=query(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
    )


def _decode(answer: str | bytes | None) -> str:
    """Return an answer of pynvml as a string. Older versions return bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""
