"""The request that the rules check, and rules about the node and the limits of the site."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train_anywhere.config.checks.contradictions import batch_size_problem
from train_anywhere.config.cluster import Site
from train_anywhere.config.schema import Config
from train_anywhere.errors import listed
from train_anywhere.files import OWN
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.script import clean_environment, units
from train_anywhere.slurm.script.clean_environment import user_name
from train_anywhere.slurm.script.job import Job, format_hours, gpu_hours

DataCheck = Callable[[Config, int, bool], list[str]]
"""Returns the problems of the data set, from the configuration, the devices over all nodes, and whether to look into its folder."""


@dataclass(frozen=True)
class Request:
    """A configuration with its job, and where it is submitted.

    Attributes:
        data_problems: the check of the data set, injected so that `slurm` does not import `data`.
        environ: environment variables, for $USER and $SCRATCH in the site's folders.
        on_node: whether the command runs on the only node of the job, so that no folder needs to be shared.
    """

    config: Config
    job: Job
    data_problems: DataCheck
    folder: Path = field(default_factory=Path.cwd)
    environ: Mapping[str, str] = field(default_factory=lambda: {**os.environ, "USER": user_name()})
    on_node: bool = False

    @property
    def site(self) -> Site:
        """The facts about the site."""
        return self.config.cluster.site

    @property
    def cluster(self) -> str:
        """The name of the preset."""
        return self.config.cluster.name


def limits_of_a_node(request: Request) -> Iterator[str]:
    """Report more GPUs, CPUs or memory than a node with GPUs has. Presets do not list nodes without GPUs."""
    job, node, c = request.job, request.job.node, request.config.cluster
    if node is None or not job.gpus:
        return
    gpus, ranks = max(job.devices), max(job.ranks) * job.pack
    kind = node.gpu_type or node.partition
    name = f"a node of {c.name}{f' ({kind})' if kind else ''}"
    if job.pack > 1 and (gpus > node.gpus or gpus not in (node.counts or [gpus])):
        yield (
            f"cluster.members_per_node={c.pack} with {c.members_per_gpu or 1} on a GPU need {gpus} GPUs, but {name} has "
            f"{listed(node.counts or [node.gpus])}; use cluster.members_per_gpu={-(-c.pack // node.gpus)}."
        )
    elif gpus > node.gpus:
        more = f" trainer.nodes={-(-sum(job.devices) // node.gpus)}"
        yield f"trainer.devices={gpus} GPUs per node, but {name} has {node.gpus}; use trainer.devices={node.gpus}{more}."
    elif node.counts and not {*job.devices} <= {*node.counts}:
        choices = " or ".join(map(str, node.counts))
        yield f"trainer.devices={gpus}, but {c.name} gives {choices} GPUs of a node; use trainer.devices={node.counts[-1]}."
    if node.cpus and job.cpus_per_node > node.cpus:
        yield (
            f"{ranks} ranks x cluster.cpus_per_task={job.cpus_per_task} are {job.cpus_per_node} CPUs per node, but {name} "
            f"gives {node.cpus}; use cluster.cpus_per_task={max(1, node.cpus // ranks)}."
        )
    most = units.megabytes(node.mem) if node.mem and request.site.takes_mem else None
    if job.mem and most and job.mem > most:
        yield (
            f"{units.short_size(job.mem)} of memory per node, but {name} gives {node.mem}; "
            f"use cluster.mem={node.mem} or cluster.mem_per_gpu={most // gpus // 1024}G."
        )


def one_amount_of_memory(request: Request) -> Iterator[str]:
    """Report memory that is set in two ways: per node, per GPU or per CPU."""
    sizes = units.sizes(request.config.cluster)
    typed = [f"cluster.{key}={size}" for key, size in sizes.items() if size is not None]
    if len(typed) > 1:
        yield f"{' and '.join(typed)} contradict each other; set all but one of them to null."


def batch_for_ranks(request: Request) -> Iterator[str]:
    """Report nodes without a rank, and a global batch that the ranks of any number of nodes can't share evenly."""
    job, devices = request.job, sum(request.job.devices)
    if min(job.devices) < 1:
        total = request.config.trainer.total_devices
        yield f"trainer.total_devices={total} leaves nodes idle with trainer.nodes={job.nodes}; use trainer.nodes={total}."
    if job.command:  # its batches are its own
        return
    counts = [job.devices[0] * nodes for nodes in job.counts]
    if not job.elastic:
        if devices and (problem := batch_size_problem(job.batch, devices, "GPUs")):
            yield problem
    elif job.batch % counts[0]:  # else all of them share it evenly
        near = min((max(1, round(job.batch / n)) * n for n in counts), key=lambda size: abs(size - job.batch))
        yield (
            f"the job may get {job.fewest} to {job.nodes} nodes, and data.batch_size={job.batch} is the global batch, which can't be "
            f"shared evenly by {listed(counts)} GPUs; use data.batch_size={near}."
        )


def longest_job(request: Request) -> Iterator[str]:
    """Report a time limit above that of the node or the site, unless a QOS may have another."""
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


def limits_of_time(request: Request) -> Iterator[str]:
    """Report a shortest limit above the longest, and a limit that is not longer than the warning before it."""
    c, time = request.config.cluster, request.job.time
    if time and c.time_min is not None and units.seconds(c.time_min) > time:
        yield (
            f"cluster.time_min={c.time_min} is longer than cluster.time={units.clock(time)}: Slurm picks a limit between the two; use "
            f"cluster.time_min={units.clock(time // 2)}."
        )
    for key, value in {"time": c.time, "time_min": c.time_min}.items():
        limit = 0 if value is None else units.seconds(value)
        if limit and c.signal_seconds and limit <= c.signal_seconds:
            yield (
                f"cluster.{key}={units.clock(limit)} is not longer than cluster.signal_seconds={c.signal_seconds}, the warning before "
                f"the limit; use more time or cluster.signal_seconds={max(1, limit // 2)}."
            )


def most_gpus(request: Request) -> Iterator[str]:
    """Report more GPUs than the site allows at once."""
    gpus, most = sum(request.job.devices), request.site.max_gpus
    if most and request.job.gpus and gpus > most:
        yield f"{gpus} GPUs are over {request.cluster}'s limit of {most}; use fewer trainer.nodes or trainer.devices."


def fair_share(request: Request) -> Iterator[str]:
    """Report more GPU hours than the user has set as a limit."""
    job, most, (hours, product) = request.job, request.config.cluster.max_gpu_hours, gpu_hours(request.job)
    if most is None or not job.gpus:
        return
    if hours is None:
        yield f"cluster.max_gpu_hours={most:g} needs a job with a time limit; add cluster.time=..."
    elif hours > most:
        yield (
            f"{product} may be {format_hours(hours)} GPU hours, over cluster.max_gpu_hours={most:g}; "
            "use less cluster.time, fewer GPUs or fewer jobs, or a larger cluster.max_gpu_hours."
        )


def account(request: Request) -> Iterator[str]:
    """Report a missing account. One without the usual form is only noted."""
    site, c = request.site, request.job.cluster
    if site.account is None or c.account or "SBATCH_ACCOUNT" in request.environ:
        return
    use = site.account_example or "NAME"
    if names := clean_environment.of_user(c, request.job.gpus):
        use = f"NAME, one of {listed(names)} (yours, from sacctmgr)"
    yield f"{request.cluster} rejects jobs without account: cluster.account is not set; use cluster.account={use}."


def comment(request: Request) -> Iterator[str]:
    """Report a missing comment, or one not in the form that the site requires."""
    value, site = request.config.cluster.comment, request.site
    pattern, example = site.comment, site.comment_example
    if pattern is None:
        return
    use = f"it must match {pattern}."
    if example:
        own = "tensorflow" if request.config.framework == "keras" else "pytorch"
        typed = re.fullmatch(r"[\w.-]+", value or "", re.ASCII)
        example = example.replace("pytorch", typed[0] if typed else own)
        own = shlex.quote(display_path(OWN / "local"))
        line = shlex.quote(f"comment: {json.dumps(example)}")
        keep = f"mkdir -p {own} && echo {line} >>{own}/{request.cluster}.yaml"
        override = f"cluster.comment={example}"
        if re.search(r"[=;<>]", example):  # quoted for the shell and for Hydra
            override = f"\"cluster.comment='{example}'\""
        use = f"use {override}, or type once, for all your jobs: `{keep}`."
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
            yield f"cluster.mail_type={requested}: sbatch does not know {listed(unknown)}; use some of {','.join(MAIL_TYPES[1:6])}."
    elif not re.fullmatch("n|j?[abe]+", requested):
        letters = "".join(PBS_MAIL_LETTERS.get(word, "") for word in words)
        yield (
            f"cluster.mail_type={requested}: PBS takes the letters a (abort), b (begin) and e (end); use "
            f"cluster.mail_type={letters or 'ae'}."
        )


def requeue(request: Request) -> Iterator[str]:
    """Report `cluster.requeue` at a site whose compute nodes can't submit."""
    if request.config.cluster.requeue and not request.site.requeue:
        yield (
            f"cluster.requeue=true, but {request.cluster} accepts no submissions from compute nodes; use cluster.requeue=false "
            "cluster.chain=3: three jobs in a row, each resuming where the one before stopped."
        )


SITE_RULES = (limits_of_a_node, longest_job, most_gpus, account, comment, requeue)
RULES = (
    limits_of_a_node, one_amount_of_memory, batch_for_ranks, longest_job, most_gpus, account, comment, requeue, limits_of_time,
    fair_share, mail_type,
)  # fmt: skip
