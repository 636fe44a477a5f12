"""Rules about the limits of the site's scheduler."""

import re
import shlex
from collections.abc import Iterator

from train_anywhere.files import ROOT
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.script import accounts, gpu_hours, units


def longest_job(request: Request) -> Iterator[str]:
    """Report a time limit above the one of the node, or the site's. A quality of service may have another limit than the node."""
    job, time = request.job, request.job.time
    # without GPUs, a job may get other nodes, unless it names their partition
    named = job.node and job.node.partition and job.node.partition == job.cluster.partition
    of_node = job.node.max_time if job.node and (job.gpus or named) and not job.cluster.qos else None
    longest = of_node or request.site.max_time
    if longest is not None and time is not None and (time == 0 or time > units.seconds(longest)):
        at_most = units.clock(units.seconds(longest))
        requested = units.clock(time) if time else "0, no limit at all,"
        yield (
            f"cluster.time={requested} is over {request.cluster}'s limit of {at_most}; use cluster.time={at_most}: "
            "a job that reaches its limit saves a checkpoint, from which the next job resumes."
        )


def shortest_job(request: Request) -> Iterator[str]:
    """Report `cluster.time_min` above the time limit."""
    time, shortest = request.job.time, request.config.cluster.time_min
    if time and shortest is not None and units.seconds(shortest) > time:
        yield (
            f"cluster.time_min={shortest} is longer than cluster.time={units.clock(time)}: Slurm picks a limit between the two; use "
            f"cluster.time_min={units.clock(time // 2)}."
        )


def signal_before_the_end(request: Request) -> Iterator[str]:
    """Report a time limit, or the shortest one that Slurm may pick, that is not longer than the warning before it."""
    c = request.config.cluster
    for key in ("time", "time_min"):
        value = getattr(c, key)
        time = 0 if value is None else units.seconds(value)
        if time and c.signal_seconds and time <= c.signal_seconds:
            yield (
                f"cluster.{key}={units.clock(time)} is not longer than cluster.signal_seconds={c.signal_seconds}, the warning before "
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
    """Report a missing account. An account without the usual form is only noted: sites have more kinds than a preset lists."""
    site, c = request.site, request.job.cluster
    if site.account is None or c.account or "SBATCH_ACCOUNT" in request.environ:
        return
    names = accounts.of_user(c, request.job.gpus)
    use = (
        f"NAME, one of {', '.join(names)} (yours, from sacctmgr)" if names else site.account_example or "NAME"
    )
    yield f"{request.cluster} rejects jobs without account: cluster.account is not set; use cluster.account={use}."


def comment(request: Request) -> Iterator[str]:
    """Report a missing comment, or one not in the form that the site requires."""
    value, pattern, example = (
        request.config.cluster.comment,
        request.site.comment,
        request.site.comment_example,
    )
    if pattern is None:
        return
    use = f"it must match {pattern}."
    if example:
        own = "tensorflow" if request.config.framework == "keras" else "pytorch"
        typed = re.fullmatch(r"[\w.-]+", value or "", re.ASCII)
        example = example.replace("pytorch", typed[0] if typed else own)
        script = shlex.quote(display_path(ROOT / "slurm" / "new_cluster.py"))
        keep = f"python {script} {request.cluster} --local {shlex.quote(f'comment={example}')}"
        use = f"use {_quote_override('cluster.comment', example)}, or type once, for all your jobs: `{keep}`."
    if value is None:
        yield f"{request.cluster} rejects jobs without comment: cluster.comment is not set; {use}"
    elif not re.fullmatch(pattern, value):
        yield f"cluster.comment={value} does not have the form that {request.cluster} requires; {use}"


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


def requeue(request: Request) -> Iterator[str]:
    """Report `cluster.requeue` at a site where compute nodes can't submit, which a job needs to requeue itself."""
    if request.config.cluster.requeue and not request.site.requeue:
        yield (
            f"cluster.requeue=true, but {request.cluster} accepts no submissions from compute nodes; use cluster.requeue=false "
            "cluster.chain=3: three jobs in a row, each resuming where the one before stopped."
        )


SITE_RULES = (longest_job, most_gpus, account, comment, requeue)
RULES = (*SITE_RULES, shortest_job, signal_before_the_end, fair_share, mail_type)
