"""Rules that are checked before a job is submitted. All problems are reported together.

A rule takes a `Request` (the configuration and its job) and yields one message for each problem: what is wrong, why, what to
type instead. Each module ends with a tuple of its rules, checked in this order:

    job_rules    the request, compared with a node of the preset and with the limits of the site's scheduler
    options      outline, `cluster.extra`, line breaks in values, launch method and container
    local_rules  folders and packages of this machine, and folders that all nodes must see

A refusal by a fact about the site names the fact's source and date, and `cluster.check=warn` makes it a note: the site may have
changed. The problems of features come last (`train_anywhere.features`). A dry run for another machine skips the rules about folders and
packages of this machine. `ADVICE` yields notes, which refuse nothing.
"""

import os
import re
from collections.abc import Callable, Iterator

from train_anywhere import features
from train_anywhere.config.checks.targets import target_notes
from train_anywhere.errors import listed
from train_anywhere.slurm.rules import job_rules, local_rules, options
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.script import units

Rule = Callable[[Request], Iterator[str]]

OF_SITE = frozenset({*job_rules.SITE_RULES, *local_rules.SITE_RULES})
"""Rules that compare a job with facts about the site."""


def problems(request: Request, elsewhere: bool = False) -> list[str]:
    """Return all problems that would make the job fail; `elsewhere` skips the rules about this machine."""
    stages: tuple[features.Check, ...] = ("any", "job") if elsewhere else ("any", "job", "submission")
    members = len(request.job.members or (0,))
    of_features = features.problems(request.config, *stages, members=members)
    return [*_refusals(request, elsewhere, noted=False), *of_features]


def _refusals(request: Request, elsewhere: bool, noted: bool) -> list[str]:
    """Return what rules refuse, or `noted`: what `cluster.check=warn` lets pass, with the source of facts about the site."""
    warn, site = request.config.cluster.check == "warn", request.site
    source = site.source or f"cluster.site of the preset {request.cluster}, which names no source"
    way_out = "" if noted else "; cluster.check=warn submits the job anyway"
    end = f" Source: {source}{f' ({site.checked})' if site.checked else ''}{way_out}."
    here: tuple[Rule, ...] = () if elsewhere else local_rules.RULES
    return [
        sentence + (end if rule in OF_SITE else "")
        for rule in (*job_rules.RULES, *options.RULES, *here)
        if (warn and rule in OF_SITE) == noted
        for sentence in rule(request)
    ]


def notes(request: Request, elsewhere: bool = False) -> list[str]:
    """Return what a user may ignore: refusals turned off by `cluster.check=warn`, advice, notes."""
    advising = (*ADVICE, *(() if elsewhere else (local_rules.cpu_packages,)))
    advice = [sentence for rule in advising for sentence in rule(request)]
    refused = _refusals(request, elsewhere, noted=True)
    return [*refused, *advice, *target_notes(request.config), *request.site.notes]


def node_type(request: Request) -> Iterator[str]:
    """Report a GPU type or partition that the preset does not list, and its note about this kind of node."""
    job, node = request.job, request.job.node
    for key in ("partition", "gpu_type"):
        value = getattr(job.cluster, key)
        known = dict.fromkeys(name for n in request.site.nodes if (name := getattr(n, key)))
        if known and value and (unknown := [name for name in value.split(",") if name not in known]):
            default = job.mem is None and request.site.takes_mem
            yield (
                f"cluster.{key}={','.join(unknown)} is not in the preset of {request.cluster}, which lists {listed(known)}: "
                "GPUs, CPUs and memory of such a node are not checked, and the scheduler decides."
                + (" The job requests no memory; cluster.mem=... does." if default else "")
            )
    if node and node.about and (job.nodes > 1 or "aarch64" in node.about):
        yield node.about


def account_form(request: Request) -> Iterator[str]:
    """Report an account that sacctmgr named, or one without the site's usual form."""
    requested, used, usual = request.config.cluster.account, request.job.cluster.account, request.site.account
    if used and usual and requested is None and "SBATCH_ACCOUNT" not in request.environ:
        yield f"cluster.account={used}, your only account (sacctmgr)."
    elif used and usual and not re.fullmatch(usual, used, re.IGNORECASE):
        yield (
            f"cluster.account={used} does not have the usual form of an account of {request.cluster}"
            f"{f', {request.site.account_example}' if request.site.account_example else ''}; the scheduler decides."
        )


def nodes_for_batch(request: Request) -> Iterator[str]:
    """Report an elastic job that leaves nodes idle, because only some numbers of nodes share the batch evenly."""
    job, (least, most) = request.job, request.config.trainer.node_range
    if len(job.counts) < most - least + 1:
        yield (
            f"data.batch_size={job.batch} is shared evenly by {listed(job.counts)} of {least} to {most} nodes: the job uses the largest "
            "of these numbers that it gets, and leaves other nodes idle."
        )


def set_by_site(request: Request) -> Iterator[str]:
    """Report a request for something that the site sets by itself: memory, partition."""
    c, site = request.config.cluster, request.site
    for key, size in units.sizes(c).items():
        if size is not None and not site.takes_mem:
            yield f"{request.cluster} sets the memory of a job by its CPUs or GPUs, and may ignore or reject cluster.{key}."
    if (partition := request.job.cluster.partition) and not site.takes_partition:
        yield f"{request.cluster} picks the partition of a job itself; cluster.partition={partition} is rarely needed."


def gpu_type(request: Request) -> Iterator[str]:
    """Report a GPU type that the constraint contradicts, or one that the site needs."""
    c, known = request.config.cluster, sorted({n.gpu_type for n in request.site.nodes if n.gpu_type})
    words = re.findall(r"[\w.-]+", request.job.constraint or "")
    if c.gpu_type and c.gpu_type not in words and (others := [n for n in known if n in words]):
        yield (
            f"cluster.constraint={request.job.constraint} requests other GPUs than cluster.gpu_type={c.gpu_type}; "
            f"use cluster.gpu_type={others[0]} or null."
        )
    if request.job.gpus and request.site.needs_gpu_type and not c.gpu_type and not request.job.constraint:
        names = "|".join(known) or "NAME"
        yield f"{request.cluster} gives its oldest GPUs to a job that does not name a type; cluster.gpu_type={names} names one."


def downloads(request: Request) -> Iterator[str]:
    """Report a data set that must be downloaded, at a site whose jobs have no internet."""
    data = request.config.data
    missing = not os.path.isdir(str(data.arguments.get("dir", "")))
    if not request.site.internet and data.arguments.get("download") and missing:
        yield f"jobs on {request.cluster} have no internet: fetch {data.name} on the login node first."


ADVICE = (
    node_type, account_form, nodes_for_batch, set_by_site, gpu_type, downloads,
    local_rules.maybe_private,
)  # fmt: skip
"""Rules that yield notes, which do not stop a submission."""
