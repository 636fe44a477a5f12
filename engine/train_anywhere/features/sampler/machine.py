"""What this node's CPUs, memory, disks and network do, asked of psutil, of the job's cgroup and of /proc."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import psutil

GIB = 1 << 30
MB = 1_000_000

JOB = re.compile(r"^(?P<number>\d+):(?P<kinds>[^:]*):(?P<path>.*?/job_\d+)(/|$)", re.M)
"""The cgroup of a Slurm job in /proc/self/cgroup; below it are those of its steps: https://slurm.schedmd.com/cgroup_v2.html"""

RESIDENT = {"anon", "shmem", "total_rss", "total_shmem"}
"""What counts of a cgroup's memory.stat (version 2, then 1): what can't be given back, so neither files read nor the kernel's."""


class Machine:
    """The node of this process.

    Args:
        marked: a word in the command line of the job's ranks, where there is no cgroup that says which processes are the job's.
        cgroups, proc: where they are mounted.
    """

    def __init__(
        self, marked: str, cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")
    ) -> None:
        self.marked, self.proc = marked, proc
        self.cpus = allotted_cpus()
        self.cgroup = job_cgroup(proc, cgroups)
        psutil.cpu_percent(percpu=True)  # the use since the last call is what the next one returns
        self._before = (time.monotonic(), _transferred())

    def facts(self) -> dict[str, float | None]:
        """What does not change: CPUs that the job can use here, memory of the node, memory that the job may use of it."""
        return {
            "cpus": len(self.cpus),
            "memory_gib": psutil.virtual_memory().total / GIB,
            "memory_limit_gib": _gib(self._limit()),
        }

    def sample(self) -> dict[str, float | None]:
        """What the node does: use and rates since the last call, of the job's CPUs, all its disks and all its networks."""
        use = psutil.cpu_percent(percpu=True)
        before, self._before = self._before, (time.monotonic(), _transferred())
        seconds = max(1e-3, self._before[0] - before[0])
        rates = {
            n: (self._before[1][n] - b) / MB / seconds for n, b in before[1].items() if n in self._before[1]
        }
        of_job = [use[cpu] for cpu in self.cpus if cpu < len(use)]
        return {
            "cpu_use_percent": sum(of_job) / len(of_job) if of_job else None,
            "memory_used_gib": psutil.virtual_memory().used / GIB,
            "job_memory_gib": _gib(self.job_memory()),
            **rates,
        }

    def job_memory(self) -> int | None:
        """Bytes of memory that the job's processes hold on this node; None where it can't be known."""
        if self.cgroup:
            with suppress(OSError, ValueError):
                rows = (line.split() for line in (self.cgroup / "memory.stat").read_text().splitlines())
                return sum(int(value) for name, value in rows if name in RESIDENT)
        try:
            return memory_of(marked_processes(self.marked, self.proc), self.proc)
        except OSError:  # no /proc
            return None

    def _limit(self) -> int | None:
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError, TypeError):
                limit = int((self.cgroup / name).read_text())  # type: ignore[operator]
                return limit if limit < psutil.virtual_memory().total else None
        return None


def allotted_cpus() -> list[int]:
    """The CPUs that this process may run on, which are the job's."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def job_cgroup(proc: Path, cgroups: Path) -> Path | None:
    """The folder of the job's cgroup that counts memory; None outside of a job, or where Slurm does not use cgroups."""
    with suppress(OSError):
        for found in JOB.finditer((proc / "self" / "cgroup").read_text()):
            kinds = found["kinds"].split(",")
            if found["number"] == "0" or "memory" in kinds:
                folder = cgroups / ("" if found["number"] == "0" else "memory") / found["path"].lstrip("/")
                return folder if (folder / "memory.stat").is_file() else None
    return None


def marked_processes(marked: str, proc: Path) -> set[int]:
    """This user's processes with a mark in their command line or that are the parent, and their descendants, without this process."""
    own = [p for p in proc.iterdir() if p.name.isdigit() and _uid(p) == os.getuid()]
    parents = {int(p.name): _parent(p) for p in own}
    found = {int(p.name) for p in own if _is_rank(p, marked)} - {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in found} - found - {os.getpid()}:
        found |= more
    return found


def memory_of(processes: set[int], proc: Path) -> int:
    """Bytes that processes hold each on its own, without pages of files and shared memory."""
    pages = 0
    for process in processes:
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = (proc / str(process) / "statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _is_rank(process: Path, marked: str) -> bool:
    with suppress(OSError):
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        script = any(word.endswith("src/train.py") for word in words)
        return script and (marked in words or process.name == str(os.getppid()))
    return False


def _uid(process: Path) -> int | None:
    with suppress(OSError):
        return process.stat().st_uid
    return None


def _parent(process: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _transferred() -> dict[str, int]:
    """Bytes since the node's start; nothing where the system does not say."""
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
