"""Rules about the limits of the site's scheduler."""

import re
from collections.abc import Iterator

from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.script import gpu_hours, units


def longest_job(request: Request) -> Iterator[str]:
    """Report a time limit above the site's."""
    longest, time = request.site.max_time, request.job.time
    if longest is not None and time is not None and (time == 0 or time > units.seconds(longest)):
        at_most = units.clock(units.seconds(longest))
        requested = units.clock(time) if time else "0, no limit at all,"
        yield (
            f"cluster.time={requested} is over {request.cluster}'s limit of {at_most}; use cluster.time={at_most}: "
            "a job that reaches its limit saves a checkpoint, from which the next job resumes."
        )


def signal_before_the_end(request: Request) -> Iterator[str]:
    """Report a time limit that is not longer than the warning before it."""
    time, ahead = request.job.time, request.config.cluster.signal_seconds
    if time and time <= ahead:
        yield (
            f"cluster.time={units.clock(time)} is not longer than cluster.signal_seconds={ahead}, the warning before "
            f"the limit; use more time or cluster.signal_seconds={max(1, time // 2)}."
        )


def most_gpus(request: Request) -> Iterator[str]:
    """Report more GPUs than the site allows at once."""
    most = request.site.max_gpus
    if most and request.job.gpus and sum(request.job.devices) > most:
        yield f"{sum(request.job.devices)} GPUs are over {request.cluster}'s limit of {most}; use fewer trainer.nodes or trainer.devices."


def fair_share(request: Request) -> Iterator[str]:
    """Report more GPU hours than the user has set as a limit."""
    job, most = request.job, request.config.cluster.max_gpu_hours
    if most is None or not job.gpus:
        return
    hours = gpu_hours.gpu_hours(job)
    if hours is None:
        yield f"cluster.max_gpu_hours={most:g} needs a job with a time limit; add cluster.time=..."
    elif hours > most:
        yield (
            f"{gpu_hours.format_product(job)} may be {gpu_hours.format_hours(hours)} GPU hours, over cluster.max_gpu_hours={most:g}; "
            "use less cluster.time, fewer GPUs or fewer jobs, or a larger cluster.max_gpu_hours."
        )


def account(request: Request) -> Iterator[str]:
    """Report a missing account, or one not in the form that the site requires; SBATCH_ACCOUNT may set it too."""
    if request.config.cluster.account is None and "SBATCH_ACCOUNT" in request.environ:
        return
    yield from _pattern_problems(
        request, "account", request.config.cluster.account, request.site.account, request.site.account_example
    )


def comment(request: Request) -> Iterator[str]:
    """Report a missing comment, or one not in the form that the site requires."""
    yield from _pattern_problems(
        request, "comment", request.config.cluster.comment, request.site.comment, request.site.comment_example
    )


def _pattern_problems(
    request: Request, key: str, value: str | None, pattern: str | None, example: str | None
) -> Iterator[str]:
    if pattern is None:
        return
    use = f"use {_quote_override(f'cluster.{key}', example)}." if example else f"it must match {pattern}."
    if value is None:
        yield f"{request.cluster} rejects jobs without {key}: cluster.{key} is not set; {use}"
    elif not re.fullmatch(pattern, value):
        yield f"cluster.{key}={value} does not have the form that {request.cluster} requires; {use}"


MAIL_TYPES = (
    "NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80",
    "TIME_LIMIT_50", "ARRAY_TASKS",
)  # fmt: skip
"""Values of sbatch's --mail-type: https://slurm.schedmd.com/sbatch.html"""

PBS_MAIL_LETTERS = {"FAIL": "a", "BEGIN": "b", "END": "e"}
"""Letters of `qsub -m` for Slurm's mail types; n means none, j includes the members of an array."""


def mail_type(request: Request) -> Iterator[str]:
    """Report a mail type that the scheduler does not know."""
    requested = request.config.cluster.mail_type
    if requested is None:
        return
    words = requested.upper().split(",")
    if request.config.cluster.scheduler == "slurm":
        if unknown := [word for word in words if word not in MAIL_TYPES]:
            yield f"cluster.mail_type={requested}: sbatch does not know {', '.join(unknown)}; use some of {','.join(MAIL_TYPES[1:6])}."
    elif not re.fullmatch("n|j?[abe]+", requested):
        letters = "".join(PBS_MAIL_LETTERS.get(word, "") for word in words)
        yield (
            f"cluster.mail_type={requested}: PBS takes the letters a (abort), b (begin) and e (end); use "
            f"cluster.mail_type={letters or 'ae'}."
        )


def _quote_override(key: str, value: str) -> str:
    """Return `key=value`, quoted for the shell and for Hydra if needed."""
    return f"\"{key}='{value}'\"" if re.search(r"[=;<>]", value) else f"{key}={value}"


def memory_refused(request: Request) -> Iterator[str]:
    """Report a memory request at a site that rejects --mem, because memory comes with the CPUs or the node."""
    requested = [k for k in ("mem", "mem_per_gpu") if getattr(request.config.cluster, k) is not None]
    if requested and not request.site.takes_mem:
        yield f"{request.cluster} rejects --mem (memory comes with the CPUs or GPUs); leave cluster.{requested[0]} out."


def partition(request: Request) -> Iterator[str]:
    """Report a partition at a site whose scheduler picks it."""
    c = request.config.cluster
    if c.partition and not request.site.takes_partition:
        yield f"{request.cluster} picks the partition itself; leave cluster.partition={c.partition} out."


def gpu_type(request: Request) -> Iterator[str]:
    """Report a missing GPU type at a site where the default is its oldest GPUs."""
    c, known = request.config.cluster, sorted({n.gpu_type for n in request.site.nodes if n.gpu_type})
    if c.gpu_type is None and request.site.needs_gpu_type and request.job.gpus:
        names = "|".join(known) or "NAME"
        yield f"{request.cluster} gives its oldest GPUs to a job that does not name a type; use cluster.gpu_type={names}."


def requeue(request: Request) -> Iterator[str]:
    """Report `cluster.requeue` at a site where compute nodes can't submit, which a job needs to requeue itself."""
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
