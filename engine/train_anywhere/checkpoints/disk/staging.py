"""Local staging: on the node's own disk a checkpoint is safe from a crash of the training within moments.

<local disk>/<name>-<user id>/<run id>/00000230/   complete, not yet in the run folder
                                      growing-<boot>/   TensorBoard's event files, see `checkpoints/disk/event_files.py`
<local disk>/<name>-<user id>/<run id>.rank-3/   rank 3's part of a checkpoint that all ranks write

`stage.json` in the run folder records that place for the process that comes after a crash: the variables that named the
local disk may have ended with the job. It is believed only if that path ends in the name, the user id and the run id of
this run, and leads to a folder that `files/removal.py` can prove to be this run's: no link below the local disk, open
to this user alone, with the marker of the run. The names `stage.json`, `stage of run` and `growing-` are older than the
words of this module: they stay, so that folders of earlier versions are still found.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train_anywhere.checkpoints.disk.manifest import (
    damage_of,
    load_manifest,
    marker_of,
    name_of,
    read_manifest,
    sizes,
    step_of,
    write_manifest,
)
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.retention import Retention
from train_anywhere.files.atomic import move, read_text, write_atomic
from train_anywhere.files.marked import NotOurs, Place, check, make
from train_anywhere.files.node_disk import boot
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.removal import make_empty, remove, say_once
from train_anywhere.runs.folder import RunDir

RECORD = "stage.json"
"""File in `checkpoints/`: where the staging folder is, and by what rule checkpoints are kept."""

Write = Callable[[Path], None]
"""Writes the files of a checkpoint into a folder."""


class Staging:
    """Complete checkpoints on this node's disk.

    They carry sizes and no checksums: a file that was closed before its folder was renamed is whole, whatever
    happens to the process. A power cut may undo that, so checkpoints from before the last boot are not trusted.

    Args:
        folder: <local disk>/<name>-<user id>/<run id>; made when the first checkpoint is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = folder / f"growing-{boot()}"  # event files from before a power cut are not trusted
        self._place = Place(
            folder.parents[1], (folder.parent.name, folder.name), f"stage of run {folder.name}"
        )
        self._stays: set[Path] = set()  # checkpoints that could not be removed

    def write(self, write: Write, info: CheckpointInfo) -> Path:
        """Write a checkpoint. Raises what `write` raises; nothing of the checkpoint is left then."""
        self.own()
        name = name_of(info.step)
        temporary = self._checkpoint(info.step, f".{name}.{os.getpid()}")
        final = self._checkpoint(info.step, name)
        make_empty(temporary, private=True)
        try:
            write(temporary.path)
            write_manifest(temporary.path, info, sizes(temporary.path), boot=boot())
            remove(final)
            move(temporary.path, final.path)
        except BaseException:
            remove(temporary)
            raise
        return final.path

    def complete(self) -> list[SavedCheckpoint]:
        """Complete checkpoints written since the last boot, by step."""
        if not self.owned():
            return []
        folders = [p for p in self.folder.iterdir() if step_of(p.name) is not None and p not in self._stays]
        found = [
            load_manifest(p)
            for p in folders
            if damage_of(p) is None and read_manifest(p).get("boot") == boot()
        ]
        return sorted((s for s in found if s.step == step_of(s.path.name)), key=lambda s: s.step)

    def drop(self, path: Path) -> None:
        """Remove a checkpoint; one that can't be removed is no longer listed by `complete`."""
        step = step_of(path.name)
        if step is None or not remove(self._checkpoint(step, path.name)):
            self._stays.add(path)

    def part(self, rank: int) -> Place:
        """A folder for one rank's part of a checkpoint that all ranks write; beside this one, which only one process makes."""
        user, run = self._place.names
        return Place(self._place.root, (user, f"{run}.rank-{rank}"), f"part of rank {rank} of run {run}")

    def clear(self) -> None:
        """Remove the staging folder, once everything in it is in the run folder, and parts that killed ranks have left."""
        remove(self._place)
        for path in self.folder.parent.glob(f"{self.folder.name}.rank-*"):
            if (rank := path.name.rpartition("-")[2]).isdecimal():
                remove(self.part(int(rank)))

    def owned(self) -> bool:
        """Whether the folder exists, and is this run's and this user's."""
        try:
            check(self._place, private=True)
        except OSError:
            return False
        return True

    def problem(self) -> str | None:
        """Why nothing may be written or removed there; None if nothing is in the way."""
        try:
            check(self._place, private=True)
        except NotOurs as why:
            return str(why)
        except OSError:
            return None  # it does not exist yet, or writing to its disk will show the error
        return None

    def own(self) -> None:
        """Make the folder for this user only: what is loaded from it later must not be written by others.

        Raises:
            OSError: the disk refuses, or the folder is not provably this run's.
        """
        make(self._place, private=True)

    def _checkpoint(self, step: int, name: str) -> Place:
        return Place(self._place.root, (*self._place.names, name), marker_of(self.folder.name, step))


def open_staging(
    run: RunDir, location: str | None, environ: Mapping[str, str] = os.environ
) -> Staging | None:
    """Where checkpoints of the run are written first; None: straight into the run folder.

    Args:
        location: `checkpoint.local`: null for none, a folder, or auto: the scheduler's folder for the job, or the
            node's disk, unless the run folder is on that same disk. TRAIN_LOCAL_DISK is cluster.local_disk.
    """
    if location is None:
        return None
    places = [environ.get(name) for name in ("TRAIN_LOCAL_DISK", "SLURM_TMPDIR", "TMPDIR")]
    roots = [*places, "/tmp"] if location == "auto" else [location]
    for root in (Path(os.path.abspath(os.path.expandvars(r))) for r in roots if r):
        if location != "auto" or (os.access(root, os.W_OK) and root.stat().st_dev != run.path.stat().st_dev):
            return Staging(root.joinpath(*staging_names(run)))
    return None


def staging_names(run: RunDir) -> tuple[str, str]:
    """Names of the two folders, one in the other, below a local disk that belong to this run and this user."""
    return f"{run.path.parent.name}-{os.getuid()}", run.id


def write_record(run: RunDir, staging: Staging, rule: Retention) -> None:
    """Record in the run folder which node's disk holds its newest checkpoints."""
    make_folder(run.checkpoints)
    fields = {"host": socket.gethostname(), "folder": str(staging.folder), "rule": asdict(rule)}
    write_atomic(run.checkpoints / RECORD, json.dumps(fields, indent=2) + "\n")


def read_record(run: RunDir) -> tuple[Staging, Retention] | None:
    """Staging and rule of the run's newest attempt, if it trained on this node and the record can be believed.

    If it can't, a line says so, and nothing there is touched.
    """
    record = run.checkpoints / RECORD
    try:
        fields = json.loads(read_text(record))
        if fields["host"] != socket.gethostname():
            return None
        return _recorded(run, fields["folder"]), _rule(**fields["rule"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, NotOurs) else "it is damaged"
        say_once(f"{record} is ignored, and nothing that it names is touched: {why}.")
        return None


def _recorded(run: RunDir, folder: str) -> Staging:
    """The staging folder at a recorded path. Raises NotOurs if the path or the folder there is not this run's."""
    path = Path(folder)
    if (
        not path.is_absolute()
        or path.parts[-2:] != staging_names(run)
        or ".." in path.parts
        or "\0" in folder
    ):
        place = Path("<local disk>", *staging_names(run))
        raise NotOurs(f"{folder} is not where this run puts checkpoints first, which is {place}")
    staging = Staging(path)
    if problem := staging.problem():
        raise NotOurs(problem)
    return staging


def _rule(mode: Any, keep_last: Any, keep_every_n_epochs: Any) -> Retention:
    """Raises ValueError for values that no configuration has."""
    counts = [keep_last] if keep_every_n_epochs is None else [keep_last, keep_every_n_epochs]
    if mode not in ("min", "max") or not all(type(n) is int and n >= 1 for n in counts):
        raise ValueError("no such rule")
    return Retention(mode, keep_last, keep_every_n_epochs)
