"""Rules about folders and packages of this machine, and folders of all nodes of a job.

Each node has its own `cluster.local_disk`. The ranks use the packages of the submitting Python too, unless the job sets up another
environment. A dry run for another machine skips these rules.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.config.cluster import Cluster
from train_anywhere.config.paths import expand, is_node_only, make_absolute, results_problems
from train_anywhere.distributed.packages import cpu_build, framework_problem, horovod_problem
from train_anywhere.files import ROOT
from train_anywhere.slurm.rules.job_rules import Request

TEMPORARY = "/tmp"
"""The folder that is private to each node, if `cluster.local_disk` is a variable of the job."""

SHARED_BY_TESTBED = "etc/slurm/testbed_folders"
"""File below a testbed's folder, and below / of its login node: folders that all of its nodes see, also those below /tmp, one per line."""


def folders_of_site(request: Request) -> Iterator[str]:
    """Report a submission from outside the folders of the site, or run folders where its jobs can't write or run."""
    # a testbed has no folders such as /scratch
    if any(os.path.exists(os.path.join(top, "bin/sbatch")) for top in _tops_of_testbeds()):
        return
    results, name = Path(request.config.paths.results), request.cluster
    inside, writable = (
        [re.sub(r"\$(\w+)", lambda m: request.environ.get(m[1]) or m[0], folder) for folder in folders]
        for folders in (request.site.submit_below, request.site.write_below)
    )
    if inside and not any(_below(request.folder, f) for f in inside):
        yield f"{name} accepts jobs only from below {' or '.join(inside)}, and this is {request.folder}; move the project there."
    if writable and not any(_below(results, f) for f in writable):
        yield (
            f"jobs on {name} can write only below {' or '.join(writable)}, and run folders go to {results}; "
            f"use paths.results={writable[0]}/results."
        )
    if wrong := [f for f in request.site.not_below if _below(results, f)]:
        yield (
            f"{name} kills jobs that run below {wrong[0]}, and run folders go to {results}; move the project to another "
            "disk, or use paths.results=DIR."
        )


def writable(request: Request) -> Iterator[str]:
    """Report a run folder that can't be created."""
    if request.config.resume is None:
        yield from results_problems(Path(request.config.paths.results), request.config.name)


def data(request: Request) -> Iterator[str]:
    """Report a missing data set, or one smaller than a batch, unless it is on a node's disk."""
    folder, c = str(request.config.data.arguments.get("dir", "")), request.config
    mounts = c.container.mounts if c.container.name != "none" else []
    look = not is_node_only(folder, c.cluster.local_disk, mounts)
    yield from request.data_problems(c, sum(request.job.devices), look)


def environment(request: Request) -> Iterator[str]:
    """Report a folder that is not an environment, unless `cluster.setup` may create it."""
    c = request.config.cluster
    if request.config.container.name != "none" or c.setup:
        return
    for key, folder in _environments(c):
        inside = {"venv": "bin/activate", "conda": "conda-meta"}[key]
        if not is_node_only(folder, c.local_disk, ()) and not (make_absolute(folder) / inside).exists():
            yield f"cluster.{key}={folder} is not an environment (it has no {inside}); check the path, or create it first."


def _environments(c: Cluster) -> list[tuple[str, str]]:
    """Return the folders of `cluster.venv` and `cluster.conda`, unless that is the name of an environment."""
    conda = c.conda if "/" in (c.conda or "") else None
    return [(key, folder) for key, folder in (("venv", c.venv), ("conda", conda)) if folder]


def _below(folder: Path, top: str) -> bool:
    return top.startswith("/") and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(top))


def own_disk(request: Request) -> Iterator[str]:
    """Report run folders, an environment or an image below `cluster.local_disk`."""
    disk = request.config.cluster.local_disk
    lost = [found for found in _needed(request) if not request.on_node and is_lost(found[1], disk)]
    if not lost:
        return
    found = " and ".join(f"{what} ({folder})" for what, folder, _ in lost)
    use = " ".join(dict.fromkeys(setting for *_, setting in lost if setting))
    of_project = all(folder.is_relative_to(ROOT) for _, folder, _ in lost)
    are, it = ("is", "it") if len(lost) == 1 else ("are", "them")
    yield (
        f"{found} {are} below cluster.local_disk={disk}, and each node has its own {disk}, where the job would not find {it}; "
        f"move {'the project' if of_project else it} to a folder that all nodes share{f', or use {use}' if use else ''} "
        f"(if all nodes share {disk}, name the nodes' own disk: cluster.local_disk=FOLDER)."
    )


def maybe_private(request: Request) -> Iterator[str]:
    """Note folders that each node may have for itself: below the nodes' own disk, or /tmp."""
    if request.on_node:
        return
    known = _without_variables(request.config.cluster.local_disk)
    top = known or TEMPORARY
    data = str(request.config.data.arguments.get("dir") or "")
    doubtful = [
        (what, folder)
        for what, folder, _ in _needed(request)
        if (below := _on_disk(folder, top)) and not (known and any(below))
    ]
    if data.startswith("/") and os.path.isdir(data) and any(_on_disk(Path(data), top)):
        doubtful.append(("the data set", Path(data)))
    for what, folder in doubtful:
        yield f"{what} ({folder}) is below {top}, and nodes usually have their own {top}: check that each node has this folder."


def is_lost(folder: Path, disk: str) -> bool:
    """Return whether nodes would not find a folder, because it is below their own disk."""
    known = _without_variables(disk)
    return bool(known) and any(_on_disk(folder, known))


def _without_variables(disk: str) -> str:
    """Return `cluster.local_disk` with variables replaced, or "" if only a node knows them."""
    with suppress(ValueError):
        return expand(disk) if disk.startswith("/") else ""
    return ""


def _on_disk(folder: Path, disk: str) -> list[bool]:
    """Return whether a folder is on a disk, or on one that is mounted there: as typed, and with links followed.

    Empty if it is not below the disk, or if a testbed shares it.
    """
    # Path.resolve raises for links that lead to themselves, before Python 3.13
    pairs = [(Path(follow(folder)), Path(follow(disk))) for follow in (os.path.abspath, os.path.realpath)]
    testbeds = _tops_of_testbeds()
    shared = Path(testbeds[0], SHARED_BY_TESTBED).read_text().splitlines() if testbeds else []
    return [
        not any(os.path.ismount(at) for at in (path, *path.parents) if at != top and at.is_relative_to(top))
        for path, top in pairs
        if path.is_relative_to(top) and not any(map(path.is_relative_to, shared))
    ]


def _tops_of_testbeds() -> list[str]:
    tops = ["/", *(os.path.dirname(folder) for folder in os.get_exec_path())]
    # Path.is_file raises for a folder that may not be read, before Python 3.14
    return [top for top in tops if os.path.isfile(os.path.join(top, SHARED_BY_TESTBED))]


def _needed(request: Request) -> Iterator[tuple[str, Path, str]]:
    """Yield what each node must find: its name, its folder, and the setting for another one."""
    c, job = request.config, request.job
    results = Path(c.paths.results)
    if c.resume:
        yield "the run folder", Path(job.run), ""
    else:
        yield "the folder of the results", results, "paths.results=FOLDER"
        if c.init.run:
            yield "the run of init=", Path(c.init.run), ""
        if c.cluster.cache:
            yield "the cache of weights", Path(c.cluster.cache), "cluster.cache=FOLDER"
    submitting = Path(job.supervisor).parents[1]  # the environment of this process
    own = next((f for f in (submitting, Path(sys.base_prefix)) if _on_disk(f, c.cluster.local_disk)), None)
    other = c.cluster.conda or c.cluster.venv or c.cluster.setup
    if own and (c.container.name != "none" or other):
        yield "the Python that submits", own, ""  # it also supervises the job
    if c.container.name != "none":
        if c.container.image and os.path.isfile(c.container.image):
            yield "the image", Path(c.container.image), "container.image=FILE"
        return
    if c.cluster.setup:  # the environment may be made on the node
        return
    for key, folder in _environments(c.cluster):
        if os.path.isdir(make_absolute(folder)):
            yield f"cluster.{key}", make_absolute(folder), f"cluster.{key}=FOLDER"
    if not c.cluster.venv and not c.cluster.conda:
        yield "the Python environment", own or submitting, "cluster.venv=FOLDER"


def packages(request: Request) -> Iterator[str]:
    """Report a missing framework or Horovod, or a Horovod that does not fit the framework or the launch method."""
    job = request.job
    if uses_other_environment(request):
        return
    if job.command:  # it may use Horovod with any framework
        if job.launch == "horovodrun" and not find_spec("horovod"):
            yield "launch=horovodrun needs Horovod, which is not installed: run `make horovod`, or use launch=srun|torchrun|mpirun."
        return
    if missing := framework_problem(job.framework):
        yield missing
    horovod = "horovod" in (job.layout.strategy, job.launch.removesuffix("run"))
    if horovod and (problem := horovod_problem(job.framework, mpi=job.launch == "mpirun")):
        several = [n for n, c in SUPPORTED[job.framework].items() if c.several_nodes and n != "horovod"]
        yield f"{problem} Without Horovod: strategy={'|'.join(several)} launch=auto."


def uses_other_environment(request: Request) -> bool:
    """Return whether the ranks may see other packages than the submitting process."""
    c = request.config.cluster
    return request.config.container.name != "none" or bool(c.conda or c.venv or c.modules or c.setup)


def cpu_packages(request: Request) -> Iterator[str]:
    """Note that a job with GPUs would train on CPUs, because the framework is built for them."""
    job = request.job
    if not job.gpus or job.command or uses_other_environment(request):
        return
    if build := cpu_build(job.framework):
        yield (
            f"{build} is built for CPUs, and the job requests GPUs, which it can't use: `make setup WHEELS=gpu`, "
            "or trainer.accelerator=cpu."
        )


SITE_RULES = (folders_of_site,)
RULES = (*SITE_RULES, writable, data, environment, own_disk, packages)
