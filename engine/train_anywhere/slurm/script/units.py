"""Parse, check and format times, sizes and patterns of a cluster, in Slurm's notation."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from train_anywhere.config.cluster import Cluster

UNQUOTED = 60 * 60
"""From this number of minutes, a number is taken for an unquoted H:MM:SS, because YAML 1.1 reads 24:00:00 as 86400."""

_TIME = r"(?:(\d{1,4})-)?(\d{1,8})(?::(\d{1,8}))?(?::(\d{1,8}))?"
"""Forms of a time limit: https://slurm.schedmd.com/sbatch.html, --time"""

_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}

NAMES = ("midnight", "noon", "fika", "teatime", "today", "tomorrow")

_UNIT = "(second|minute|hour|day|week)s?"

_CLOCK = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?"

_DATE = rf"\d{{4}}-\d\d-\d\d(T{_CLOCK})?"

LOWEST_ON_PBS = 1024
"""Largest `cluster.nice`: the priority of qsub -p is from -1024 to 1023 (OpenPBS, man qsub)."""


def seconds(time: int | str) -> int:
    """Return the seconds of a time: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S. Raises ValueError for the user."""
    if isinstance(time, int) and time >= UNQUOTED:
        raise ValueError(
            f"{time} is a number, and sbatch reads a number as minutes; YAML reads an unquoted {clock(time)} "
            f'as this number: write it with quotes, "{clock(time)}"; for {time} minutes write "{clock(time * 60)}".'
        )
    if match := re.fullmatch(_TIME, str(time), re.ASCII):
        days, *parts = [int(part or 0) for part in match.groups()]
        # without days, one or two numbers are minutes and seconds
        hours, minutes, rest = parts if match[1] or match[4] else (0, *parts[:2])
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if str(time).upper() in ("UNLIMITED", "INFINITE"):
        raise ValueError(
            f"'{time}' is not a time limit; for no limit use cluster.time=0, and leave out other limits."
        )
    raise ValueError(
        f"'{time}' is not a time limit; use minutes (90), hours (\"24:00:00\") or days (1-12:00:00)."
    )


def clock(time: int) -> str:
    """Format seconds as H:MM:SS, which both Slurm and PBS read."""
    return f"{time // 3600}:{time // 60 % 60:02}:{time % 60:02}"


def megabytes(size: str) -> int:
    """Return the MiB of a size such as 180G. A plain number is in MiB. Raises ValueError for the user."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([KMGT]?)B?", size.strip(), re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"'{size}' is not an amount of memory; use a form like 180G.")
    mebibytes = float(match[1]) * _SIZES[match[2].upper() or "M"]
    return math.ceil(mebibytes)  # rounded up: 0 would mean all of the memory


def short_size(mib: int) -> str:
    """Format MiB in the largest unit that gives a whole number: 384G for 393216."""
    if mib == 0:
        return "0"
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def check_begin_time(text: str) -> str:
    """Return the start time unchanged. Raises ValueError for the user if its form is not known."""
    named = re.fullmatch(rf"now(\+\d{{1,8}}({_UNIT})?)?|{_CLOCK}|{'|'.join(NAMES)}", text, re.ASCII)
    if not named and _date(text) is None:
        raise ValueError(
            f"'{text}' is not a start time; use a clock time (\"20:00\", in YAML with the quotes), tomorrow, now+2hours, "
            "or a date (2026-12-01, 2026-12-01T08:00)."
        )
    return text


def to_qsub(text: str) -> str:
    """Return a date in the form of `qsub -a`. Raises ValueError for the user if it is a relative time."""
    when = _date(text)
    if when is None:
        raise ValueError(
            f"'{text}' is understood only by Slurm, and PBS takes a date; use cluster.begin=2026-12-01T08:00."
        )
    return f"{when:%Y%m%d%H%M.%S}"


def _date(text: str) -> datetime | None:
    if not re.fullmatch(_DATE, text, re.ASCII):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # a day that does not exist, or an hour of one digit
        return None


def sizes(cluster: Cluster) -> dict[str, str | None]:
    """Return the keys that set the memory of a job, with their values."""
    return {key: getattr(cluster, key) for key in ("mem", "mem_per_gpu", "mem_per_cpu")}


def format_problems(cluster: Cluster) -> list[str]:
    """Return a message for each value with a wrong format, with its key."""
    site = cluster.site
    of_kinds = {f"site.nodes[{i}].max_time": n.max_time for i, n in enumerate(site.nodes)}
    times = {"time": cluster.time, "time_min": cluster.time_min, "site.max_time": site.max_time, **of_kinds}
    of_nodes = {
        f"site.nodes[{i}].{k}": getattr(n, k) for i, n in enumerate(site.nodes) for k in ("mem", "gpu_mem")
    }
    patterns = {"site.account": site.account, "site.comment": site.comment}
    found = [
        *_problems_of_kind(times, seconds, may_be_0=("time",)),
        *_problems_of_kind({**sizes(cluster), **of_nodes}, megabytes, may_be_0=("mem", "mem_per_cpu")),
        *_problems_of_kind({"begin": cluster.begin}, check_begin_time),
        *_problems_of_kind(patterns, re.compile),
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
    zero = [key for key, size in sizes(cluster).items() if size is not None and megabytes(size) == 0]
    zero += ["time"] if cluster.time is not None and seconds(cluster.time) == 0 else []
    for key in zero[:1]:  # for Slurm, all memory of a node, or no time limit
        yield f"cluster.{key}=0 has a meaning for Slurm only; for PBS give an amount, or leave it out."
    yield from _problems_of_kind({"begin": cluster.begin}, to_qsub)
    if cluster.exclusive == "user":
        yield "cluster.exclusive=user is known to Slurm only; on PBS use cluster.exclusive=true, or leave it out."
    if (cluster.nice or 0) > LOWEST_ON_PBS:
        yield f"cluster.nice={cluster.nice} is too large for PBS; use cluster.nice={LOWEST_ON_PBS} at most."


def _problems_of_kind(
    values: dict[str, Any], read: Callable[[Any], object], may_be_0: Sequence[str] = ()
) -> Iterator[str]:
    for key, value in values.items():
        try:
            if value is not None and read(value) == 0 and key not in may_be_0:
                yield f"cluster.{key}={value} must be above 0; leave it out if it is not known."
        except ValueError as error:
            yield f"cluster.{key}: {error}"
        except (re.error, RecursionError, OverflowError) as error:
            yield f"cluster.{key}: '{value}' is not a regular expression ({error})."
