"""Checkpoints on the node's local disk, which survive a crash of the training.

<local disk>/<name>-<user id>/<run id>/00000230/   complete, not yet in the run folder
<local disk>/<name>-<user id>/<run id>.rank-3/   rank 3's shard of a checkpoint that all ranks write, or all files of its program

The folder is used only if `files/removal.py` can prove that it is this run's: no link below the local disk, access for this user only,
with the marker of the run. After a crash, `checkpoints/recovery.py` finds it by `checkpoint.local` in the run's config.yaml.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from train_anywhere.checkpoints.disk.manifest import (
    CheckpointInfo,
    SavedCheckpoint,
    find_damage,
    folder_name,
    list_sizes,
    load_manifest,
    ownership_marker,
    parse_step,
    write_manifest,
)
from train_anywhere.files.atomic import move
from train_anywhere.files.node_disk import boot_id
from train_anywhere.files.removal import (
    NotOwnedError,
    OwnedFolder,
    check_owned,
    make_owned,
    new_folder,
    remove,
)


@dataclass(frozen=True)
class Retention:
    """The rule by which checkpoints are kept, ordered by step because clocks jump.

    Attributes:
        mode: whether the best `value` is the smallest or the largest.
        keep_last: number of newest checkpoints to keep.
        keep_every_n_epochs: also keep checkpoints written at the end of every n-th epoch.
    """

    mode: Literal["min", "max"]
    keep_last: int
    keep_every_n_epochs: int | None = None

    def best(self, saved: Iterable[SavedCheckpoint]) -> SavedCheckpoint | None:
        """Return the checkpoint with the best finite value, the newest of equal ones, or None."""
        sign = 1 if self.mode == "max" else -1
        valued = [s for s in saved if s.value is not None and math.isfinite(s.value)]
        return max(valued, key=lambda s: (sign * (s.value or 0.0), s.step), default=None)

    def kept(self, saved: Iterable[SavedCheckpoint]) -> set[Path]:
        """Return the folders of the checkpoints to keep."""
        ordered, n = sorted(saved, key=lambda s: s.step), self.keep_every_n_epochs
        ends = [s for s in ordered if n and s.batch == 0 and s.epoch and s.epoch % n == 0]
        best = self.best(ordered)
        return {s.path for s in (*ordered[-self.keep_last :], *ends, *([best] if best else []))}


Write = Callable[[Path], None]
"""A function that writes the files of a checkpoint into a folder."""


class Staging:
    """Reader and writer of complete checkpoints on this node's disk.

    They have sizes but no checksums: a file that was closed before its folder was renamed is complete, even if the process is killed.
    A power cut may lose data, so checkpoints from before the last boot are not used.

    Args:
        folder: <local disk>/<name>-<user id>/<run id>; made when the first checkpoint is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = (folder.parent.name, folder.name)
        self._place = OwnedFolder(folder.parents[1], names, f"stage of run {folder.name}")
        self._stays: set[Path] = set()  # checkpoints that could not be removed

    def write(self, write: Write, info: CheckpointInfo) -> Path:
        """Write a checkpoint, and return its folder. A partial one is removed. Raises OSError."""
        make_owned(self._place, private=True)  # for this user only, since checkpoints are loaded
        name = folder_name(info.step)
        final = self._checkpoint(info.step, name)
        with new_folder(self._checkpoint(info.step, f".{name}.{os.getpid()}"), private=True) as temporary:
            write(temporary)
            write_manifest(temporary, info, list_sizes(temporary), boot=boot_id())
            remove(final)
            move(temporary, final.path)
        return final.path

    def list_complete(self) -> list[SavedCheckpoint]:
        """Return the complete checkpoints written since the last boot, ordered by step."""
        if not self.is_owned():
            return []
        folders = [
            p for p in self.folder.iterdir() if parse_step(p.name) is not None and p not in self._stays
        ]
        found = [load_manifest(p) for p in folders if find_damage(p) is None]
        good = [s for s in found if s.boot == boot_id() and s.step == parse_step(s.path.name)]
        return sorted(good, key=lambda s: s.step)

    def drop(self, path: Path) -> None:
        """Remove a checkpoint. `list_complete` no longer lists it, even if it can't be removed."""
        step = parse_step(path.name)
        if step is None or not remove(self._checkpoint(step, path.name)):
            self._stays.add(path)

    def clear(self) -> None:
        """Remove the staging folder."""
        remove(self._place)

    def is_owned(self) -> bool:
        """Return whether the folder exists and belongs to this run and this user."""
        try:
            check_owned(self._place, private=True)
        except OSError:
            return False
        return True

    def find_problem(self) -> str | None:
        """Return why nothing may be written or removed in the folder, or None."""
        try:
            check_owned(self._place, private=True)
        except NotOwnedError as why:
            return str(why)
        except OSError:
            return None  # it does not exist yet, or writing to its disk will show the error
        return None

    def _checkpoint(self, step: int, name: str) -> OwnedFolder:
        names, marker = (*self._place.names, name), ownership_marker(self.folder.name, step)
        return OwnedFolder(self._place.root, names, marker)
