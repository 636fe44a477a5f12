"""Rules about folders of this machine, left out of a dry run on another one."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from train_anywhere.config.checks.writable import results_problems
from train_anywhere.config.paths import absolute, node_only
from train_anywhere.slurm.rules.rule_request import Request


def submit_folder(request: Request) -> Iterator[str]:
    """Some sites accept jobs only from below certain folders."""
    folders = [_expand(f, request.environ) for f in request.site.submit_below]
    if folders and not any(_below(request.folder, f) for f in folders):
        yield (
            f"{request.cluster} accepts jobs only from below {' or '.join(folders)}, and this is {request.folder}; move the project there "
            "(cluster.site.submit_below=[] turns this check off)."
        )


def write_folder(request: Request) -> Iterator[str]:
    """Run folders must be where jobs can write."""
    folders = [_expand(f, request.environ) for f in request.site.write_below]
    results = Path(request.config.paths.results)
    if folders and not any(_below(results, f) for f in folders):
        yield (
            f"jobs on {request.cluster} can write only below {' or '.join(folders)}, and run folders go to {results}; "
            f"use paths.results={folders[0]}/results (cluster.site.write_below=[] turns this check off)."
        )


def writable(request: Request) -> Iterator[str]:
    """The run folder can be made."""
    if request.config.resume is None:
        yield from results_problems(Path(request.config.paths.results), request.config.name)


def data(request: Request) -> Iterator[str]:
    """The data set is there and is enough for a batch; what only a job's node has is not looked for."""
    folder, c = str(request.config.data.arguments.get("dir", "")), request.config
    mounts = c.container.mounts if c.container.name != "none" else []
    look = not node_only(folder, c.cluster.local_disk, mounts)
    yield from request.data_problems(c, sum(request.job.devices), look)


def environment(request: Request) -> Iterator[str]:
    """A virtual environment and a conda environment given as a folder, unless the job itself makes them."""
    c = request.config.cluster
    if request.config.container.name != "none" or c.setup:
        return
    conda = c.conda if c.conda and "/" in c.conda else None  # else a name, which conda knows
    for key, folder, inside in (("venv", c.venv, "bin/activate"), ("conda", conda, "conda-meta")):
        if folder and not node_only(folder, c.local_disk, ()) and not (absolute(folder) / inside).exists():
            yield f"cluster.{key}={folder} is not an environment (it has no {inside}); check the path, or make it first."


def _expand(folder: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda m: environ.get(m[1]) or m[0], folder)


def _below(folder: Path, top: str) -> bool:
    return folder.resolve().is_relative_to(Path(top).resolve()) if top.startswith("/") else False


RULES = (submit_folder, write_folder, writable, data, environment)
