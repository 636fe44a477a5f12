"""Measure the use of this node's CPUs, memory, disks, network and GPUs."""

import os
import re
import shutil
import subprocess
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
MB = 1_000_000

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
        self.mark, self.proc = mark, proc
        self.cpus = usable_cpus()
        self.cgroup = job_cgroup(proc, cgroups)
        psutil.cpu_percent(percpu=True)  # each call returns the use since the previous one of the same thread
        self._thread = threading.get_ident()
        self._before = (time.monotonic(), _transferred_bytes())

    def facts(self) -> dict[str, float | None]:
        """Return constant facts: the job's CPUs here, the node's memory, and the job's limit."""
        limit, whole = None, psutil.virtual_memory().total
        for name in ("memory.limit_in_bytes", "memory.max"):
            with suppress(OSError, ValueError, TypeError):
                found = int((self.cgroup / name).read_text())  # type: ignore[operator]
                limit = found / GIB if found < whole else None
        return {"cpus": len(self.cpus), "memory_gib": whole / GIB, "memory_limit_gib": limit}

    def sample(self) -> dict[str, float | None]:
        """Return use and rates since the last call: CPUs, memory, disks and networks."""
        use, me = psutil.cpu_percent(percpu=True), threading.get_ident()
        first, self._thread = me != self._thread, me
        before, self._before = self._before, (time.monotonic(), _transferred_bytes())
        seconds = max(1e-3, self._before[0] - before[0])
        rates = {
            n: (self._before[1][n] - b) / MB / seconds for n, b in before[1].items() if n in self._before[1]
        }
        memory = self.job_memory()
        job_use = [use[cpu] for cpu in self.cpus if cpu < len(use)]
        # over a shorter time psutil counts too few ticks
        unknown = first or not job_use or seconds < SHORTEST_S
        return {
            "cpu_use_percent": None if unknown else sum(job_use) / len(job_use),
            "memory_used_gib": psutil.virtual_memory().used / GIB,
            "job_memory_gib": None if memory is None else memory / GIB,
            **rates,
        }

    def job_memory(self) -> int | None:
        """Return the bytes of memory that the job's processes use on this node, if known."""
        if self.cgroup:
            with suppress(OSError, ValueError):
                rows = (line.split() for line in (self.cgroup / "memory.stat").read_text().splitlines())
                return sum(int(value) for name, value in rows if name in RESIDENT)
        pages = 0
        with suppress(OSError):
            for process in job_processes(self.mark, self.proc):
                with suppress(OSError, ValueError):
                    # shared memory and pages of files do not count
                    _, resident, shared, *_ = (self.proc / str(process) / "statm").read_text().split()
                    pages += int(resident) - int(shared)
            return pages * os.sysconf("SC_PAGE_SIZE")
        return None  # no /proc


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


def job_processes(mark: str, proc: Path) -> set[int]:
    """Return this user's marked ranks and their descendants, without this process."""
    own = []
    for process in proc.iterdir():
        with suppress(OSError):
            if process.name.isdigit() and process.stat().st_uid == os.getuid():
                own.append(process)
    parents = {int(p.name): _parent(p) for p in own}
    found = set[int]()
    for process in own:
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            script = any(word.endswith("src/train.py") for word in words)
            if script and (mark in words or process.name == str(os.getppid())):
                found.add(int(process.name))
    found -= {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in found} - found - {os.getpid()}:
        found |= more
    return found


def _parent(process: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _transferred_bytes() -> dict[str, int]:
    """Return bytes since the node's boot, by the names of their rates, as far as known."""
    found: dict[str, int] = {}
    with suppress(Exception):  # psutil: a kernel or a container without these files
        if disks := psutil.disk_io_counters():
            found |= {"disk_read_mb_per_s": disks.read_bytes, "disk_written_mb_per_s": disks.write_bytes}
    with suppress(Exception):
        cards = [c for name, c in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
        found["network_received_mb_per_s"] = sum(c.bytes_recv for c in cards)
        found["network_sent_mb_per_s"] = sum(c.bytes_sent for c in cards)
    return found


MIB = 1 << 20

FIELDS = "index,uuid,name,memory.total,utilization.gpu,memory.used,power.draw,temperature.gpu"
"""Fields to query from nvidia-smi, in %, MiB, W and degrees Celsius: see `nvidia-smi --help-query-gpu`."""

ANSWER_S = 10.0
"""Longest run of nvidia-smi in seconds: it hangs if a GPU does not answer."""


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
    ask = _nvml() or _nvidia_smi()
    if ask is None:
        return list
    return lambda: visible_gpus(ask(), os.environ)


def visible_gpus(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names. All if it is not set or matches none.

    Schedulers set it for the processes of a job. If they also hide other GPUs (Slurm with ConstrainDevices), the driver and
    CUDA_VISIBLE_DEVICES use the same numbers, from 0: https://slurm.schedmd.com/gres.html#GPU_Management
    """
    listed = cuda_visible_devices(environ)
    if listed is None:
        return gpus
    return [g for g in gpus if str(g.index) in listed or g.uuid in listed] or (gpus if listed else [])


def _nvml() -> Callable[[], list[Gpu]] | None:
    """Return a function that reads GPUs from NVML, which starts no process, if it can be used."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, no driver, or a driver of another version
        return None
    return lambda: [_read_nvml(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]


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


def _nvidia_smi() -> Callable[[], list[Gpu]] | None:
    """Return a function that reads GPUs from nvidia-smi, if it is installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]

    def ask() -> list[Gpu]:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
            )
        except subprocess.TimeoutExpired:
            return []
        return [gpu for line in done.stdout.splitlines() if (gpu := _parse_line(line))]

    return ask


def _parse_line(line: str) -> Gpu | None:
    """Return the GPU in a row of nvidia-smi. None for an error."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(FIELDS.split(",")) or not words[0].isdigit():
        return None
    total, use, used, power, temperature = (_number(word) for word in words[3:])
    return Gpu(
        int(words[0]),
        words[1],
        words[2],
        memory_gib=total and total * MIB / GIB,
        use_percent=use,
        memory_used_gib=None if used is None else used * MIB / GIB,
        power_w=power,
        temperature_c=temperature,
    )


def _number(word: str) -> float | None:
    """Return a number, or None for [N/A], [Not Supported], [Unknown Error] and [GPU is lost]."""
    try:
        return float(word)
    except ValueError:
        return None
