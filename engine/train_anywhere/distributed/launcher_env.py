"""Read the environment variables that launchers set; an unusable value is one sentence."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.errors import TopologyError

Environ = Mapping[str, str]


def text(env: Environ, name: str) -> str:
    """Value of a variable that must be set."""
    if not env.get(name):
        raise TopologyError(
            f"{name} is not set, though other variables say that this process is one rank of several: start "
            f"the ranks with launch={'|'.join(LAUNCHERS)}, or unset the variables of an earlier launcher."
        )
    return env[name]


def number(env: Environ, name: str, default: int | None = None) -> int:
    """Value as a whole number; without a `default` the variable must be set."""
    if default is not None and not env.get(name):
        return default
    value = text(env, name)
    if not _is_number(value):
        raise TopologyError(f"{name}={value} is not a whole number.")
    return int(value)


def _is_number(value: str) -> bool:
    """Digits as every program prints them; `isdigit` also takes those that `int` does not."""
    return value.isascii() and value.isdigit() and len(value) <= 18


def port(env: Environ, shared: str = "", step: int = 0) -> int:
    """MASTER_PORT, else a port derived from the job's id, else from `shared`, a string that all ranks have."""
    if "MASTER_PORT" in env:
        return number(env, "MASTER_PORT")
    if "SLURM_JOB_ID" in env:
        return job_port(number(env, "SLURM_JOB_ID"), step, number(env, "SLURM_RESTART_COUNT", 0))
    return job_port(zlib.crc32((env.get("PBS_JOBID") or shared).encode()))


def job_port(job: int, step: int = 0, restart: int = 0) -> int:
    """First of 16 TCP ports for a job; jobs on one node, their steps and restarts get different ones.

    From 10000 up to 29999: below the ports that Linux gives to clients (32768 and above).
    """
    return 10000 + 16 * ((job + 389 * step + 617 * restart) % 1250)


def train_hosts(env: Environ, world_size: int) -> tuple[str, str]:
    """Hosts and ranks per host: TRAIN_HOSTS=node1:2,node2:1 gives ("node1,node2", "2,1").

    ("", "") if it is not set, or lists another number of ranks (fewer ranks were started within the job).
    """
    pairs = [part.rpartition(":") for part in env.get("TRAIN_HOSTS", "").split(",") if part]
    if not all(host and _is_number(tasks) for host, _, tasks in pairs):
        raise TopologyError(
            f"TRAIN_HOSTS={env['TRAIN_HOSTS']} is not a list such as node1:2,node2:1 (host:ranks)."
        )
    if sum(int(tasks) for _, _, tasks in pairs) != world_size:
        return "", ""
    return ",".join(host for host, _, _ in pairs), ",".join(tasks for _, _, tasks in pairs)


def pbs_hosts(env: Environ, world_size: int) -> tuple[str, str]:
    """The same from $PBS_NODEFILE, one line per slot; ("", "") unless there is one slot per rank."""
    file = Path(env.get("PBS_NODEFILE") or os.devnull)
    try:
        lines = file.read_text().split() if file.exists() else []
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise TopologyError(f"PBS_NODEFILE={file} can't be read ({why}).") from error
    if len(lines) != world_size:
        return "", ""
    hosts = list(dict.fromkeys(lines))
    return ",".join(hosts), ",".join(str(lines.count(host)) for host in hosts)


def node_in(tasks: list[int], rank: int, local_rank: int, local_world_size: int, launcher: str) -> int:
    """Number of the node where a rank is, if ranks fill one node after another."""
    first = 0
    for node, count in enumerate(tasks):
        if first <= rank < first + count and (local_rank, local_world_size) == (rank - first, count):
            return node
        first += count
    raise TopologyError(
        f"{launcher} made this rank {rank}, local rank {local_rank} of {local_world_size}, which does not fit "
        f"the ranks per node {tasks}: export TRAIN_HOSTS=node1:2,node2:1 (host:ranks) and let ranks fill "
        "node after node."
    )


def places(train_hosts: str) -> dict[int, str]:
    """Host of each rank, from TRAIN_HOSTS (host:ranks,...); what can't be read is left out."""
    found: dict[int, str] = {}
    for word in train_hosts.split(","):
        host, _, count = word.rpartition(":")
        if host and count.isdecimal():
            found |= {len(found) + n: host for n in range(int(count))}
    return found
