"""Measure the use of this node's CPUs, memory, disks and network with psutil, the job's cgroup and /proc."""

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

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
        """Return constant facts: CPUs that the job can use here, memory of the node, and the job's memory limit."""
        return {
            "cpus": len(self.cpus),
            "memory_gib": psutil.virtual_memory().total / GIB,
            "memory_limit_gib": _gib(self._limit()),
        }

    def sample(self) -> dict[str, float | None]:
        """Return use and rates since the last call: the job's CPUs, memory, and all disks and networks of the node."""
        use, me = psutil.cpu_percent(percpu=True), threading.get_ident()
        first, self._thread = me != self._thread, me
        before, self._before = self._before, (time.monotonic(), _transferred_bytes())
        seconds = max(1e-3, self._before[0] - before[0])
        rates = {
            n: (self._before[1][n] - b) / MB / seconds for n, b in before[1].items() if n in self._before[1]
        }
        job_use = [use[cpu] for cpu in self.cpus if cpu < len(use)]
        return {
            # over a shorter time psutil counts too few ticks
            "cpu_use_percent": None
            if first or not job_use or seconds < SHORTEST_S
            else sum(job_use) / len(job_use),
            "memory_used_gib": psutil.virtual_memory().used / GIB,
            "job_memory_gib": _gib(self.job_memory()),
            **rates,
        }

    def job_memory(self) -> int | None:
        """Return the bytes of memory that the job's processes use on this node; None if unknown."""
        if self.cgroup:
            with suppress(OSError, ValueError):
                rows = (line.split() for line in (self.cgroup / "memory.stat").read_text().splitlines())
                return sum(int(value) for name, value in rows if name in RESIDENT)
        try:
            return private_memory(job_processes(self.mark, self.proc), self.proc)
        except OSError:  # no /proc
            return None

    def _limit(self) -> int | None:
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError, TypeError):
                limit = int((self.cgroup / name).read_text())  # type: ignore[operator]
                return limit if limit < psutil.virtual_memory().total else None
        return None


def usable_cpus() -> list[int]:
    """Return the CPUs that this process may run on, which are the job's."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def job_cgroup(proc: Path, cgroups: Path) -> Path | None:
    """Return the folder of the job's memory cgroup; None outside a job, or if Slurm does not use cgroups."""
    with suppress(OSError):
        for found in JOB.finditer((proc / "self" / "cgroup").read_text()):
            kinds = found["kinds"].split(",")
            if found["number"] == "0" or "memory" in kinds:
                folder = cgroups / ("" if found["number"] == "0" else "memory") / found["path"].lstrip("/")
                return folder if (folder / "memory.stat").is_file() else None
    return None


def job_processes(mark: str, proc: Path) -> set[int]:
    """Return this user's ranks (marked in the command line, or the parent process) and their descendants, without this process."""
    own = [p for p in proc.iterdir() if p.name.isdigit() and _uid(p) == os.getuid()]
    parents = {int(p.name): _parent(p) for p in own}
    found = {int(p.name) for p in own if _is_rank(p, mark)} - {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in found} - found - {os.getpid()}:
        found |= more
    return found


def private_memory(processes: set[int], proc: Path) -> int:
    """Return the bytes of memory that processes do not share, without pages of files and shared memory."""
    pages = 0
    for process in processes:
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = (proc / str(process) / "statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _is_rank(process: Path, mark: str) -> bool:
    with suppress(OSError):
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        script = any(word.endswith("src/train.py") for word in words)
        return script and (mark in words or process.name == str(os.getppid()))
    return False


def _uid(process: Path) -> int | None:
    with suppress(OSError):
        return process.stat().st_uid
    return None


def _parent(process: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _transferred_bytes() -> dict[str, int]:
    """Return bytes since the node's boot, by the names of their rates; empty if the system does not report them."""
    found: dict[str, int] = {}
    with suppress(Exception):  # psutil: a kernel or a container without these files
        if disks := psutil.disk_io_counters():
            found |= {"disk_read_mb_per_s": disks.read_bytes, "disk_written_mb_per_s": disks.write_bytes}
    with suppress(Exception):
        cards = [c for name, c in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
        found["network_received_mb_per_s"] = sum(c.bytes_recv for c in cards)
        found["network_sent_mb_per_s"] = sum(c.bytes_sent for c in cards)
    return found


def _gib(number: int | None) -> float | None:
    return None if number is None else number / GIB
