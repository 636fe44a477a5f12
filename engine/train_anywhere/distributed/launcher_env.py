"""Read the environment variables that launchers set; an unusable value raises a TopologyError of one sentence."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from train_anywhere.config.checks.strategy_table import LAUNCHERS
from train_anywhere.errors import TopologyError

Environ = Mapping[str, str]


def read_string(env: Environ, name: str) -> str:
    """Return the value of a variable that must be set."""
    if not env.get(name):
        raise TopologyError(
            f"{name} is not set, though other variables show that this process is one rank of several: start "
            f"the ranks with launch={'|'.join(LAUNCHERS)}, or unset the variables of an earlier launcher."
        )
    return env[name]


def read_number(env: Environ, name: str, default: int | None = None) -> int:
    """Return the value as a whole number; without a `default` the variable must be set."""
    if default is not None and not env.get(name):
        return default
    value = read_string(env, name)
    if not _is_number(value):
        raise TopologyError(f"{name}={value} is not a whole number.")
    return int(value)


def _is_number(value: str) -> bool:
    """Return whether a value has only ASCII digits; `isdigit` also accepts digits that `int` refuses, such as ²."""
    return value.isascii() and value.isdigit() and len(value) <= 18


def read_port(env: Environ, shared: str = "", step: int = 0) -> int:
    """Return MASTER_PORT, else a port derived from the job's id, else from `shared`, a string that all ranks have."""
    if "MASTER_PORT" in env:
        return read_number(env, "MASTER_PORT")
    if "SLURM_JOB_ID" in env:
        return job_port(read_number(env, "SLURM_JOB_ID"), step, read_number(env, "SLURM_RESTART_COUNT", 0))
    return job_port(zlib.crc32((env.get("PBS_JOBID") or shared).encode()))


def job_port(job: int, step: int = 0, restart: int = 0) -> int:
    """Return the first of 16 TCP ports for a job; jobs on one node, their steps and restarts get different ones.

    The ports are 10000 to 29999, below those that Linux gives to clients (32768 and above).
    """
    return 10000 + 16 * ((job + 389 * step + 617 * restart) % 1250)


def train_hosts(env: Environ, world_size: int) -> tuple[str, str]:
    """Return hosts and ranks per host: TRAIN_HOSTS=node1:2,node2:1 gives ("node1,node2", "2,1").

    Return ("", "") if it is not set, or lists another number of ranks (fewer ranks were started within the job).
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
    """Return the same as `train_hosts` from $PBS_NODEFILE, one line per slot; ("", "") unless there is one slot per rank."""
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


def find_node(tasks: list[int], rank: int, local_rank: int, local_world_size: int, launcher: str) -> int:
    """Return the number of a rank's node, if ranks fill one node after another. Raises TopologyError if they do not."""
    first = 0
    for node, count in enumerate(tasks):
        if first <= rank < first + count and (local_rank, local_world_size) == (rank - first, count):
            return node
        first += count
    raise TopologyError(
        f"{launcher} made this rank {rank}, local rank {local_rank} of {local_world_size}, which does not fit "
        f"the ranks per node {tasks}: export TRAIN_HOSTS=node1:2,node2:1 (host:ranks) and let ranks fill "
        "one node after another."
    )


def hosts_by_rank(train_hosts: str) -> dict[int, str]:
    """Return the host of each rank, from TRAIN_HOSTS (host:ranks,...); parts that can't be read are left out."""
    found: dict[int, str] = {}
    for word in train_hosts.split(","):
        host, _, count = word.rpartition(":")
        if host and count.isdecimal():
            found |= {len(found) + n: host for n in range(int(count))}
    return found
