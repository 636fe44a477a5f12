"""What the scheduler of the site takes."""

import re
from collections.abc import Iterator

from slurm import units
from slurm.rules.case import Case


def longest_job(case: Case) -> Iterator[str]:
    """Not longer than the site's longest job."""
    longest, time = case.site.max_time, case.job.time
    if longest is not None and time is not None and (time == 0 or time > units.seconds(longest)):
        at_most = units.clock(units.seconds(longest))
        asked = units.clock(time) if time else "0, no limit at all,"
        yield (
            f"cluster.time={asked} is over {case.cluster}'s limit of {at_most}; use cluster.time={at_most}: "
            "a job that reaches its limit saves a checkpoint and goes on in the next one."
        )


def signal_before_the_end(case: Case) -> Iterator[str]:
    """The warning ahead of the time limit must come after the start."""
    time, ahead = case.job.time, case.config.cluster.signal_seconds
    if time and time <= ahead:
        yield (
            f"cluster.time={units.clock(time)} is not longer than cluster.signal_seconds={ahead}, the warning ahead of "
            f"the limit; use more time or cluster.signal_seconds={max(1, time // 2)}."
        )


def most_gpus(case: Case) -> Iterator[str]:
    """Not more GPUs at once than the site gives."""
    most = case.site.max_gpus
    if most and case.job.gpus and sum(case.job.devices) > most:
        yield f"{sum(case.job.devices)} GPUs are over {case.cluster}'s limit of {most}; use fewer trainer.nodes or trainer.devices."


def account(case: Case) -> Iterator[str]:
    """An account where the site wants one, in its form; a profile can give it too, by SBATCH_ACCOUNT."""
    if case.config.cluster.account is None and "SBATCH_ACCOUNT" in case.environ:
        return
    yield from _pattern(
        case, "account", case.config.cluster.account, case.site.account, case.site.account_example
    )


def comment(case: Case) -> Iterator[str]:
    """A comment where the site wants one, in its form."""
    yield from _pattern(
        case, "comment", case.config.cluster.comment, case.site.comment, case.site.comment_example
    )


def _pattern(
    case: Case, key: str, value: str | None, pattern: str | None, example: str | None
) -> Iterator[str]:
    if pattern is None:
        return
    use = (
        f"use \"cluster.{key}='{example}'\"."
        if example and re.search(r"[=;<>]", example)
        else f"use cluster.{key}={example}."
    )
    if value is None:
        yield f"{case.cluster} rejects jobs without {key}: cluster.{key} is not set; {use}"
    elif not re.fullmatch(pattern, value):
        yield f"cluster.{key}={value} has not the form that {case.cluster} wants; {use}"


def memory_refused(case: Case) -> Iterator[str]:
    """Some sites reject --mem: memory follows the CPUs or is the whole node's."""
    asked = [k for k in ("mem", "mem_per_gpu") if getattr(case.config.cluster, k) is not None]
    if asked and not case.site.takes_mem:
        yield f"{case.cluster} rejects --mem (memory comes with the CPUs or GPUs); leave cluster.{asked[0]} out."


def partition(case: Case) -> Iterator[str]:
    """A partition of the site, or none where the scheduler picks it."""
    c, known = case.config.cluster, {n.partition for n in case.site.nodes} - {None}
    if c.partition and not case.site.takes_partition:
        yield f"{case.cluster} picks the partition itself; leave cluster.partition={c.partition} out."
    elif known and c.partition not in known:
        yield (
            f"cluster.partition={c.partition} is none of {case.cluster}'s partitions with GPUs: {', '.join(sorted(map(str, known)))}."
        )


def gpu_type(case: Case) -> Iterator[str]:
    """A GPU type of the site; and one at all where the oldest is given otherwise."""
    c, known = case.config.cluster, sorted({n.gpu_type for n in case.site.nodes if n.gpu_type})
    if c.gpu_type is None and case.site.needs_gpu_type and case.job.gpus:
        yield f"{case.cluster} gives its oldest GPUs to a job that names no type; use cluster.gpu_type={'|'.join(known)}."
    elif c.gpu_type and known and c.gpu_type not in known:
        yield f"cluster.gpu_type={c.gpu_type} is no GPU of {case.cluster}; use cluster.gpu_type={'|'.join(known)}."


def requeue(case: Case) -> Iterator[str]:
    """Where nodes can't submit, a job can't requeue itself."""
    if case.config.cluster.requeue and not case.site.requeue:
        yield (
            f"cluster.requeue=true, but {case.cluster} takes no submissions from compute nodes; use cluster.requeue=false "
            "cluster.chain=3: three jobs in a row, each going on where the one before stopped."
        )


def chain(case: Case) -> Iterator[str]:
    """An array is not chained."""
    links = case.config.cluster.chain
    if links > 1 and case.job.members is not None:
        yield f"cluster.chain={links} works for a single run, not for a sweep; use cluster.chain=1."


RULES = (
    longest_job,
    signal_before_the_end,
    most_gpus,
    account,
    comment,
    memory_refused,
    partition,
    gpu_type,
    requeue,
    chain,
)
