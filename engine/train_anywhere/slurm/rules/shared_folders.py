"""Rules about folders that a job reads and writes: all of its nodes must see them, and each node has its own `cluster.local_disk`."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from train_anywhere.config.paths import expand, make_absolute
from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.files import ROOT
from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.script.job import Job

TEMPORARY = "/tmp"
"""The folder that is private to each node, if `cluster.local_disk` is a variable of the job."""

SHARED_BY_TESTBED = "etc/slurm/testbed_folders"
"""File below a testbed's folder, and below / of its login node: folders that all of its nodes see, also those below /tmp, one per line."""


def own_disk(request: Request) -> Iterator[str]:
    """Report run folders, an environment or an image below `cluster.local_disk`, of which each node has its own."""
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
    """Note folders that each node may have for itself: a mounted disk below the nodes' own disk, /tmp, or the data set."""
    if request.on_node:
        return
    known = _without_variables(request.config.cluster.local_disk)
    top = known or TEMPORARY
    data = str(request.config.data.arguments.get("dir") or "")
    doubtful = [
        (what, folder)
        for what, folder, _ in _needed(request)
        if _is_below(folder, top) and not (known and is_private(folder, top))
    ]
    if data.startswith("/") and os.path.isdir(data) and is_private(Path(data), top):
        doubtful.append(("the data set", Path(data)))
    for what, folder in doubtful:
        yield f"{what} ({folder}) is below {top}, and nodes usually have their own {top}: check that each node has this folder."


def is_lost(folder: Path, disk: str) -> bool:
    """Return whether the nodes of a job would not find a folder, because it is below their own disk."""
    known = _without_variables(disk)
    return bool(known) and is_private(folder, known) and not _is_only_node()


def _without_variables(disk: str) -> str:
    """Return `cluster.local_disk` with variables replaced; "" if only a node knows their values."""
    with suppress(ValueError):
        return expand(disk) if disk.startswith("/") else ""
    return ""


def is_private(folder: Path, disk: str) -> bool:
    """Return whether a folder, as typed or with its links followed, is on the disk of this machine and not on a mounted one."""
    return any(
        path.is_relative_to(top) and not any(path.is_relative_to(m) and m != top for m in _mounts(top))
        for path, top in _pairs(folder, disk)
    )


def _is_below(folder: Path, disk: str) -> bool:
    return any(path.is_relative_to(top) for path, top in _pairs(folder, disk))


def _pairs(folder: Path, disk: str) -> list[tuple[Path, Path]]:
    """Return the folder and the disk, as typed and with their links followed, without folders that a testbed shows to its nodes."""
    # Path.resolve raises for links that lead to themselves, before Python 3.13
    typed, followed = (
        (Path(os.path.abspath(folder)), Path(disk)),
        (Path(os.path.realpath(folder)), Path(os.path.realpath(disk))),
    )
    shared = _shared_by_testbed()
    return [
        (path, top) for path, top in (typed, followed) if not any(path.is_relative_to(one) for one in shared)
    ]


def _shared_by_testbed() -> list[str]:
    """Return the folders that all nodes of the testbed see whose commands are on PATH; empty on a real cluster."""
    tops = _tops_of_testbeds()
    return Path(tops[0], SHARED_BY_TESTBED).read_text().splitlines() if tops else []


def _tops_of_testbeds() -> list[str]:
    tops = ["/", *(os.path.dirname(folder) for folder in os.get_exec_path())]
    # Path.is_file raises for a folder that may not be read, before Python 3.14
    return [top for top in tops if os.path.isfile(os.path.join(top, SHARED_BY_TESTBED))]


def is_testbed() -> bool:
    """Return whether sbatch is that of a testbed, which has no folders such as a site's /scratch."""
    return any(os.path.exists(os.path.join(top, "bin/sbatch")) for top in _tops_of_testbeds())


def _mounts(top: Path) -> list[Path]:
    """Return the mounted folders below `top`; none on a machine without /proc."""
    with suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
        # spaces in paths are written as \040
        points = [Path(line.split(" ")[4].replace("\\040", " ")) for line in lines]
        return [point for point in points if point.is_relative_to(top)]
    return []


def _needed(request: Request) -> Iterator[tuple[str, Path, str]]:
    """Yield what each node must find: its name, its folder, and the setting that names another one."""
    c, job = request.config, request.job
    results, run = Path(c.paths.results), Path(job.run)
    if job.program:  # an evaluation, whose folder is RUN/evaluations/job-1
        yield "the run folder", run.parents[1], ""
    elif c.resume:
        yield "the run folder", run, ""
    else:
        yield "the folder of the results", results, "paths.results=FOLDER"
        if c.init.run:
            yield "the run of init=", Path(c.init.run), ""
        if c.cluster.cache:
            yield "the cache of weights", Path(c.cluster.cache), "cluster.cache=FOLDER"
    own = next((f for f in _folders_of_python(job) if _is_below(f, c.cluster.local_disk)), None)
    made = (
        c.container.name != "none"
        or c.cluster.conda
        or c.cluster.venv
        or c.cluster.setup
        or c.cluster.pack_env
    )
    if own and made and not job.program:
        yield "the Python that submits", own, ""  # it also supervises the job
    if c.container.name != "none":
        if c.container.image and os.path.isfile(c.container.image):
            yield "the image", Path(c.container.image), "container.image=FILE"
        return
    if c.cluster.setup or c.cluster.pack_env:  # the environment may be made on the node
        return
    conda = c.cluster.conda if c.cluster.conda and "/" in c.cluster.conda else None
    for key, folder in (("venv", c.cluster.venv), ("conda", conda)):
        if folder and os.path.isdir(make_absolute(folder)):
            yield f"cluster.{key}", make_absolute(folder), f"cluster.{key}=FOLDER"
    if not c.cluster.venv and not c.cluster.conda:
        yield "the Python environment", own or _folders_of_python(job)[0], "cluster.venv=FOLDER"


def _folders_of_python(job: Job) -> tuple[Path, Path]:
    """Return the folders of the environment that submits, and of its Python."""
    return Path(job.supervisor).parents[1], Path(sys.base_prefix)


@cache
def _is_only_node() -> bool:
    """Return whether this machine is the only node of its cluster; False if Slurm does not answer."""
    with suppress(SchedulerError):
        nodes = programs.query(["sinfo", "--noheader", "--format=%n"], "").split()
        return {*nodes} == {socket.gethostname().partition(".")[0]}
    return False


RULES = (own_disk,)
