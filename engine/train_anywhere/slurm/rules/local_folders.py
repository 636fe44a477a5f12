"""Rules about folders of this machine. A dry run for another machine skips them."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from train_anywhere.config.paths import is_node_only, make_absolute, results_problems
from train_anywhere.slurm.rules.rule_request import Request


def submit_folder(request: Request) -> Iterator[str]:
    """Report a submission from outside the folders from which the site accepts jobs."""
    folders = [_expand(f, request.environ) for f in request.site.submit_below]
    if folders and not any(_below(request.folder, f) for f in folders):
        yield (
            f"{request.cluster} accepts jobs only from below {' or '.join(folders)}, and this is {request.folder}; move the project there."
        )


def write_folder(request: Request) -> Iterator[str]:
    """Report run folders that are not below a folder where the site's jobs can write."""
    folders = [_expand(f, request.environ) for f in request.site.write_below]
    results = Path(request.config.paths.results)
    if folders and not any(_below(results, f) for f in folders):
        yield (
            f"jobs on {request.cluster} can write only below {' or '.join(folders)}, and run folders go to {results}; "
            f"use paths.results={folders[0]}/results."
        )


def forbidden_folder(request: Request) -> Iterator[str]:
    """Report run folders, where a job runs and writes, below a folder in which the site kills jobs."""
    results = Path(request.config.paths.results)
    if folders := [f for f in request.site.not_below if _below(results, f)]:
        yield (
            f"{request.cluster} kills jobs that run below {folders[0]}, and run folders go to {results}; move the project to another "
            "disk, or use paths.results=DIR."
        )


def writable(request: Request) -> Iterator[str]:
    """Report a run folder that can't be created."""
    if request.config.resume is None:
        yield from results_problems(Path(request.config.paths.results), request.config.name)


def data(request: Request) -> Iterator[str]:
    """Report a missing data set, or one smaller than a batch. Folders on a node's disk are not checked."""
    folder, c = str(request.config.data.arguments.get("dir", "")), request.config
    mounts = c.container.mounts if c.container.name != "none" else []
    look = not is_node_only(folder, c.cluster.local_disk, mounts)
    yield from request.data_problems(c, sum(request.job.devices), look)


def environment(request: Request) -> Iterator[str]:
    """Report a folder of a virtual or conda environment that is not one, unless `cluster.setup` may create it."""
    c = request.config.cluster
    if request.config.container.name != "none" or c.setup:
        return
    conda = c.conda if c.conda and "/" in c.conda else None  # else the name of an environment
    for key, folder, inside in (("venv", c.venv, "bin/activate"), ("conda", conda, "conda-meta")):
        if (
            folder
            and not is_node_only(folder, c.local_disk, ())
            and not (make_absolute(folder) / inside).exists()
        ):
            yield f"cluster.{key}={folder} is not an environment (it has no {inside}); check the path, or create it first."


def _expand(folder: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda m: environ.get(m[1]) or m[0], folder)


def _below(folder: Path, top: str) -> bool:
    return top.startswith("/") and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(top))


SITE_RULES = (submit_folder, write_folder, forbidden_folder)
RULES = (*SITE_RULES, writable, data, environment)
