"""Check the format of a cluster's times, sizes and patterns, from the command line or from the preset."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from train_anywhere.config.cluster import Cluster
from train_anywhere.slurm.script import begin_time, units

LOWEST_ON_PBS = 1024
"""Largest `cluster.nice`: the priority of qsub -p is from -1024 to 1023 (OpenPBS, man qsub)."""


def problems(cluster: Cluster) -> list[str]:
    """Return a message for each value with a wrong format, with its key such as `cluster.site.nodes[0].mem`."""
    site = cluster.site
    of_kinds = {f"site.nodes[{i}].max_time": n.max_time for i, n in enumerate(site.nodes)}
    times = {"time": cluster.time, "time_min": cluster.time_min, "site.max_time": site.max_time, **of_kinds}
    sizes = {"mem": cluster.mem, "mem_per_gpu": cluster.mem_per_gpu}
    of_nodes = {
        f"site.nodes[{i}].{k}": getattr(n, k) for i, n in enumerate(site.nodes) for k in ("mem", "gpu_mem")
    }
    patterns = {"site.account": site.account, "site.comment": site.comment}
    found = [
        *_format_problems(times, units.seconds, may_be_0=("time",)),
        *_format_problems({**sizes, **of_nodes}, units.megabytes, may_be_0=("mem",)),
        *_format_problems({"begin": cluster.begin}, begin_time.check),
        *_format_problems(patterns, _compile_pattern),
    ]
    found += [
        f"cluster.site.nodes[{i}].counts={n.counts} has more than the {n.gpus} GPUs of such a node."
        for i, n in enumerate(site.nodes)
        if n.counts and max(n.counts) > n.gpus
    ]
    if cluster.scheduler == "none":
        found.append(
            f"cluster.scheduler=none can't take jobs, and cluster={cluster.name} submits one; use cluster=local to run here."
        )
    if cluster.scheduler == "pbs" and not found:
        found += _pbs_problems(cluster)
    return found


def _pbs_problems(cluster: Cluster) -> Iterator[str]:
    """Report values that only Slurm understands."""
    if _zero_key(cluster):
        yield f"cluster.{_zero_key(cluster)}=0 has a meaning for Slurm only; for PBS give an amount, or leave it out."
    yield from _format_problems({"begin": cluster.begin}, begin_time.to_qsub)
    if cluster.exclusive == "user":
        yield "cluster.exclusive=user is known to Slurm only; on PBS use cluster.exclusive=true, or leave it out."
    if (cluster.nice or 0) > LOWEST_ON_PBS:
        yield f"cluster.nice={cluster.nice} is too large for PBS; use cluster.nice={LOWEST_ON_PBS} at most."


def _format_problems(
    values: dict[str, Any], read: Callable[[Any], object], may_be_0: Sequence[str] = ()
) -> Iterator[str]:
    for key, value in values.items():
        try:
            if value is not None and read(value) == 0 and key not in may_be_0:
                yield f"cluster.{key}={value} must be above 0; leave it out if it is not known."
        except ValueError as error:
            yield f"cluster.{key}: {error}"


def _zero_key(cluster: Cluster) -> str:
    """Return the key that is 0: in Slurm, mem=0 means all memory of a node, and time=0 means no limit."""
    if cluster.mem is not None and units.megabytes(cluster.mem) == 0:
        return "mem"
    return "time" if cluster.time is not None and units.seconds(cluster.time) == 0 else ""


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"'{pattern}' is not a regular expression ({error}).") from error
