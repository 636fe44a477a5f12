"""What the site's scheduler accepts."""

import re
from collections.abc import Iterator

from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.script import gpu_hours, units


def longest_job(request: Request) -> Iterator[str]:
    """The time limit is within the site's."""
    longest, time = request.site.max_time, request.job.time
    if longest is not None and time is not None and (time == 0 or time > units.seconds(longest)):
        at_most = units.clock(units.seconds(longest))
        asked = units.clock(time) if time else "0, no limit at all,"
        yield (
            f"cluster.time={asked} is over {request.cluster}'s limit of {at_most}; use cluster.time={at_most}: "
            "a job that reaches its limit saves a checkpoint, from which the next job resumes."
        )


def signal_before_the_end(request: Request) -> Iterator[str]:
    """The signal before the time limit must come after the start."""
    time, ahead = request.job.time, request.config.cluster.signal_seconds
    if time and time <= ahead:
        yield (
            f"cluster.time={units.clock(time)} is not longer than cluster.signal_seconds={ahead}, the warning before "
            f"the limit; use more time or cluster.signal_seconds={max(1, time // 2)}."
        )


def most_gpus(request: Request) -> Iterator[str]:
    """No more GPUs than the site allows at once."""
    most = request.site.max_gpus
    if most and request.job.gpus and sum(request.job.devices) > most:
        yield f"{sum(request.job.devices)} GPUs are over {request.cluster}'s limit of {most}; use fewer trainer.nodes or trainer.devices."


def fair_share(request: Request) -> Iterator[str]:
    """No more GPU hours than the user allows themselves."""
    job, most = request.job, request.config.cluster.max_gpu_hours
    if most is None or not job.gpus:
        return
    hours = gpu_hours.gpu_hours(job)
    if hours is None:
        yield f"cluster.max_gpu_hours={most:g} can't be kept by a job without a time limit; add cluster.time=..."
    elif hours > most:
        yield (
            f"{gpu_hours.product(job)} may be {gpu_hours.short(hours)} GPU hours, over cluster.max_gpu_hours={most:g}; use less "
            "cluster.time, fewer GPUs or fewer jobs, or a larger cluster.max_gpu_hours."
        )


def account(request: Request) -> Iterator[str]:
    """An account of the form that the site requires; it may also come from SBATCH_ACCOUNT."""
    if request.config.cluster.account is None and "SBATCH_ACCOUNT" in request.environ:
        return
    yield from _pattern(
        request, "account", request.config.cluster.account, request.site.account, request.site.account_example
    )


def comment(request: Request) -> Iterator[str]:
    """A comment of the form that the site requires."""
    yield from _pattern(
        request, "comment", request.config.cluster.comment, request.site.comment, request.site.comment_example
    )


def _pattern(
    request: Request, key: str, value: str | None, pattern: str | None, example: str | None
) -> Iterator[str]:
    if pattern is None:
        return
    use = f"use {_typed(f'cluster.{key}', example)}." if example else f"it must match {pattern}."
    if value is None:
        yield f"{request.cluster} rejects jobs without {key}: cluster.{key} is not set; {use}"
    elif not re.fullmatch(pattern, value):
        yield f"cluster.{key}={value} does not have the form that {request.cluster} requires; {use}"


MAIL = (
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80",
    "TIME_LIMIT_50", "ARRAY_TASKS",
)  # fmt: skip
"""https://slurm.schedmd.com/sbatch.html, --mail-type"""

MAIL_OF_PBS = {"FAIL": "a", "BEGIN": "b", "END": "e"}
"""Letters of `qsub -m` for Slurm's words; n is none, j counts the members of an array too."""


def mail_type(request: Request) -> Iterator[str]:
    """When the scheduler writes a mail, in its own words."""
    asked = request.config.cluster.mail_type
    if asked is None:
        return
    words = asked.upper().split(",")
    if request.config.cluster.scheduler == "slurm":
        if unknown := [word for word in words if word not in MAIL]:
            yield f"cluster.mail_type={asked}: sbatch knows no {', '.join(unknown)}; use some of {','.join(MAIL[1:6])}."
    elif not re.fullmatch("n|j?[abe]+", asked):
        letters = "".join(MAIL_OF_PBS.get(word, "") for word in words)
        yield (
            f"cluster.mail_type={asked}: PBS takes letters, a (aborted), b (begun) and e (ended); use "
            f"cluster.mail_type={letters or 'ae'}."
        )


def _typed(key: str, value: str) -> str:
    """`key=value` as it is typed in a shell and read by Hydra."""
    return f"\"{key}='{value}'\"" if re.search(r"[=;<>]", value) else f"{key}={value}"


def memory_refused(request: Request) -> Iterator[str]:
    """Some sites reject --mem, because memory comes with the CPUs or is the whole node's."""
    asked = [k for k in ("mem", "mem_per_gpu") if getattr(request.config.cluster, k) is not None]
    if asked and not request.site.takes_mem:
        yield f"{request.cluster} rejects --mem (memory comes with the CPUs or GPUs); leave cluster.{asked[0]} out."


def partition(request: Request) -> Iterator[str]:
    """No partition if the scheduler picks it."""
    c = request.config.cluster
    if c.partition and not request.site.takes_partition:
        yield f"{request.cluster} picks the partition itself; leave cluster.partition={c.partition} out."


def gpu_type(request: Request) -> Iterator[str]:
    """Some sites need a GPU type, because the default is their oldest."""
    c, known = request.config.cluster, sorted({n.gpu_type for n in request.site.nodes if n.gpu_type})
    if c.gpu_type is None and request.site.needs_gpu_type and request.job.gpus:
        names = "|".join(known) or "NAME"
        yield f"{request.cluster} gives its oldest GPUs to a job that does not name a type; use cluster.gpu_type={names}."


def requeue(request: Request) -> Iterator[str]:
    """A job can requeue itself only if compute nodes may submit."""
    if request.config.cluster.requeue and not request.site.requeue:
        yield (
            f"cluster.requeue=true, but {request.cluster} accepts no submissions from compute nodes; use cluster.requeue=false "
            "cluster.chain=3: three jobs in a row, each resuming where the one before stopped."
        )


RULES = (
    longest_job,
    signal_before_the_end,
    most_gpus,
    fair_share,
    account,
    comment,
    memory_refused,
    partition,
    gpu_type,
    requeue,
    mail_type,
)
