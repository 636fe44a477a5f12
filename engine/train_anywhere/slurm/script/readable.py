"""Check that the times, sizes and patterns of a cluster can be read, whether typed or of the preset."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from train_anywhere.config.cluster import Cluster
from train_anywhere.slurm.script import begin, units

LOWEST_ON_PBS = 1024
"""Of qsub -p, which is from -1024 to 1023: OpenPBS, man qsub."""


def problems(cluster: Cluster) -> list[str]:
    """One sentence for each that can't be read, with its key such as `cluster.site.nodes[0].mem`."""
    site = cluster.site
    times = {"time": cluster.time, "site.max_time": site.max_time}
    sizes = {"mem": cluster.mem, "mem_per_gpu": cluster.mem_per_gpu}
    of_nodes = {
        f"site.nodes[{i}].{k}": getattr(n, k) for i, n in enumerate(site.nodes) for k in ("mem", "gpu_mem")
    }
    patterns = {"site.account": site.account, "site.comment": site.comment}
    found = [
        *_unreadable(times, units.seconds, may_be_0=("time",)),
        *_unreadable({**sizes, **of_nodes}, units.megabytes, may_be_0=("mem",)),
        *_unreadable({"begin": cluster.begin}, begin.read),
        *_unreadable(patterns, _compiled),
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
        found += _not_on_pbs(cluster)
    return found


def _not_on_pbs(cluster: Cluster) -> Iterator[str]:
    """What Slurm alone understands."""
    if _zero_on_pbs(cluster):
        yield f"cluster.{_zero_on_pbs(cluster)}=0 has a meaning for Slurm only; for PBS give an amount, or leave it out."
    yield from _unreadable({"begin": cluster.begin}, begin.of_pbs)
    if cluster.exclusive == "user":
        yield "cluster.exclusive=user is known to Slurm only; on PBS use cluster.exclusive=true, or leave it out."
    if (cluster.nice or 0) > LOWEST_ON_PBS:
        yield f"cluster.nice={cluster.nice} is lower than a priority of PBS can be; use cluster.nice={LOWEST_ON_PBS} at most."


def _unreadable(
    values: dict[str, Any], read: Callable[[Any], object], may_be_0: Sequence[str] = ()
) -> Iterator[str]:
    for key, value in values.items():
        try:
            if value is not None and read(value) == 0 and key not in may_be_0:
                yield f"cluster.{key}={value} must be above 0; leave it out if it is not known."
        except ValueError as error:
            yield f"cluster.{key}: {error}"


def _zero_on_pbs(cluster: Cluster) -> str:
    """The key that is 0: in Slurm, mem=0 means a node's whole memory and time=0 no limit."""
    if cluster.mem is not None and units.megabytes(cluster.mem) == 0:
        return "mem"
    return "time" if cluster.time is not None and units.seconds(cluster.time) == 0 else ""


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"'{pattern}' is not a regular expression ({error}).") from error
