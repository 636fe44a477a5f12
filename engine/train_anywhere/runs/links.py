"""Refuse links and special files where a run writes: a link could lead the run to overwrite a file elsewhere.

Links that nothing writes to are allowed, such as the user's notes, or a checkpoint that was moved to another disk.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir

FILES = (
    r"config\.yaml|overrides\.txt|run\.json|steps|metrics\.csv|jobs\.txt|lock|bad_nodes|report\.html|log\.txt|job\.\w+"
    r"|\.run-marker|(slurm|pbs)-.*\.(out|err)"
)
"""Names of the files that this project and the schedulers write directly in the run folder."""

FOLDERS = "checkpoints|tensorboard|monitor|debug|profile|ranks|evaluations|exports|wandb|mlruns"
"""Names of the folders that this project and its loggers make there."""

REPLACED = ("metrics.csv", "lock")
"""Files in whose place a folder may be: their writers move it to another name, or refuse it."""

ALL = ".*"
INSIDE = {
    "monitor": ALL,
    "debug": ALL,
    "profile": ALL,
    "ranks": ALL,
    "mlruns": ALL,
    "checkpoints": r"index\.json|newest|best|stage\.json|\.run-marker",
    "tensorboard": r"events\.out\..*",
    "wandb": r"(?!latest-run$|debug.*\.log$).*",  # links that W&B makes
}
"""Names that are written in each folder, as regular expressions."""


def refuse_links(run: RunDir) -> None:
    """Raise CheckpointError with all messages of `find_special_files`."""
    if problems := find_special_files(run):
        raise CheckpointError("\n       ".join(problems))


def find_special_files(run: RunDir) -> list[str]:
    """Return a message for each link, pipe, socket or device in the place of something that a run writes."""
    found = [_problem(entry, "file") for entry in _matching_entries(run.path, FILES)]
    found += [_problem(entry, "folder") for entry in _matching_entries(run.path, FOLDERS)]
    for folder, names in INSIDE.items():
        names += f"|{_node_pattern(run)}" if folder == "tensorboard" else ""
        found += [_problem(entry) for entry in _matching_entries(run.path / folder, names)]
    return sorted(problem for problem in found if problem)


def _problem(entry: os.DirEntry[str], wanted: str = "") -> str:
    if entry.is_symlink():
        target = os.readlink(entry.path)
        return f"{entry.path} is a link to {target}: a run continues in its own folder, so put what it leads to there."
    if entry.is_dir(follow_symlinks=False):
        in_the_way = wanted == "file" and entry.name not in REPLACED
        return f"{entry.path} is a folder, not an ordinary file; move it away." if in_the_way else ""
    if wanted == "folder":
        return f"{entry.path} is not a folder; move it away."
    if not entry.is_file(follow_symlinks=False):
        return f"{entry.path} is a pipe or device, not an ordinary file; move it away."
    return ""


def _matching_entries(folder: Path, names: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder whose name matches; with `ALL`, also those in its subfolders."""
    with suppress(OSError):
        if folder.is_symlink():
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                if re.fullmatch(names, entry.name, re.DOTALL):
                    yield entry
                if names == ALL and entry.is_dir(follow_symlinks=False):
                    yield from _matching_entries(Path(entry.path), names)


def _node_pattern(run: RunDir) -> str:
    """Return a pattern that matches this node and the nodes of the run: each has a folder in `tensorboard`."""
    hosts = [socket.gethostname(), node_name()]
    with suppress(CheckpointError):
        hosts += map(str, run.read_info().get("hosts") or [])
    return "|".join(re.escape(host) for host in hosts if host)
