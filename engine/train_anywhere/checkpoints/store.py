"""The checkpoints of a run, each complete or absent, in its folder, checked by checksums, and before that on the node's local disk.

checkpoints/00000230/            the framework's files, and manifest.json: step, position, metrics, checksums
checkpoints/newest               name of the newest checkpoint      checkpoints/best      name of the best checkpoint
checkpoints/00000230.damaged-1/  a checkpoint whose checksums did not match; it is never removed

On the node's local disk, where checkpoints survive a crash of the training and `recovery` finds them by `checkpoint.local`:

<local disk>/<name>-<user id>/<run id>/00000230/   complete, not yet in the run folder
<local disk>/<name>-<user id>/<run id>.rank-3/   rank 3's shard of a checkpoint that all ranks write, or all files of its program

Other names are ignored. A folder is used or removed only if `files/removal.py` can prove that it belongs to this run.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from train_anywhere.checkpoints.disk.manifest import (
    MANIFEST,
    CheckpointInfo,
    Files,
    SavedCheckpoint,
    copy_files,
    find_damage,
    flush_files,
    folder_name,
    list_sizes,
    load_manifest,
    owned_folder,
    parse_folder,
    parse_step,
    write_manifest,
)
from train_anywhere.errors import CheckpointError, listed
from train_anywhere.files.atomic import move, set_aside, write_atomic
from train_anywhere.files.copy_files import print_line, sync_folder
from train_anywhere.files.node_disk import boot_id
from train_anywhere.files.removal import (
    OwnedFolder,
    check_owned,
    make_owned,
    new_folder,
    print_once,
    remove,
)
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.summary import is_program


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
        final = self._checkpoint(name)
        with new_folder(self._checkpoint(f".{name}.{os.getpid()}"), private=True) as temporary:
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
        return sorted((s for s in found if s.boot == boot_id()), key=lambda s: s.step)

    def drop(self, path: Path) -> None:
        """Remove a checkpoint. `list_complete` no longer lists it, even if it can't be removed."""
        if not remove(self._checkpoint(path.name)):
            self._stays.add(path)

    def clear(self) -> None:
        """Remove the staging folder."""
        remove(self._place)

    def is_owned(self) -> bool:
        """Return whether the folder exists and belongs to this run and this user."""
        return _is_owned(self._place, private=True)

    def _checkpoint(self, name: str) -> OwnedFolder:
        return owned_folder(self._place.root, (*self._place.names, name), self.folder.name)


def _is_owned(place: OwnedFolder, private: bool = False) -> bool:
    try:
        check_owned(place, private)
    except OSError:
        return False
    return True


def refuse_unreadable(run: RunDir) -> None:
    """Check the run's checkpoints before a submission, by file sizes. Raises CheckpointError.

    A run that was killed before its first checkpoint passes and starts at step 0, and so does a program.
    """
    if is_program(run):  # its files are its own
        return
    if run.checkpoints.exists() and not os.access(run.checkpoints, os.R_OK | os.X_OK):
        raise CheckpointError(f"{run.checkpoints} can't be read: you lack the permission to list it.")
    store = CheckpointStore(run.checkpoints)
    info = {} if store.newest_good(checksums=False) else run.read_info()
    if info.get("checkpoint") or any(attempt.get("from_step") for attempt in info.get(ATTEMPTS, [])):
        raise CheckpointError(
            f"{run.path} had a checkpoint, according to its run.json, but {run.checkpoints.name}/ has none: put it back, or "
            f"use resume={run.path} from_scratch=true to start again from step 0."
        )


class CheckpointStore:
    """Reader and writer of the checkpoints in one folder, which a rule keeps. Only one process may write at a time."""

    def __init__(self, folder: Path, rule: Retention = Retention("min", keep_last=1)) -> None:
        self.folder, self.rule = folder, rule
        self._damaged: dict[Path, str] = {}

    def write(self, write: Write, info: CheckpointInfo) -> SavedCheckpoint:
        """Write a checkpoint. Raises OSError, and errors of `write`."""

        def fill(folder: Path) -> Files:
            write(folder)
            return flush_files(folder)

        return self._make(info, fill)

    def publish(self, source: Path, pause: Callable[[], None] = lambda: None) -> SavedCheckpoint:
        """Copy a checkpoint into this folder, with `pause` between chunks. Raises OSError."""
        saved = load_manifest(source)
        return self._make(saved, lambda folder: copy_files(saved, folder, pause))

    def _make(self, info: CheckpointInfo, fill: Callable[[Path], Files]) -> SavedCheckpoint:
        """Fill a temporary folder and rename it to a checkpoint; after an error, remove it."""
        with new_folder(self._place(f".{folder_name(info.step)}.{os.getpid()}")) as temporary:
            write_manifest(temporary, info, fill(temporary))
            return self._install(temporary, info.step)

    def all(self) -> list[SavedCheckpoint]:
        """Return all checkpoints with a readable manifest, ordered by step."""
        found = []
        for path in self._list_complete():
            try:
                found.append(load_manifest(path))
            except (OSError, ValueError):
                continue
        return found

    def newest_good(self, checksums: bool = True) -> SavedCheckpoint | None:
        """Return the newest undamaged checkpoint, or None without any. Without `checksums` only sizes are compared.

        With them damaged ones are reported, and the next commit renames them, because the run resumes from an earlier one.
        Raises CheckpointError if all are damaged.
        """
        complete, found = self._list_complete(), list[str]()
        while complete:
            path = complete.pop()
            damage = find_damage(path, checksums)
            if damage is None:
                return load_manifest(path)
            self._damaged[path] = damage
            found.append(f"{path.name}: {damage}")
            then = "trying the one before" if complete else "there is none before it"
            if checksums:
                print_line(f"checkpoint {path} is damaged ({damage}); {then}.")
        if found:
            run, count = self.folder.parent, f"{len(found)} {'is' if len(found) == 1 else 'are'} damaged"
            raise CheckpointError(
                f"{run} has no checkpoint that can be read ({count}: {listed(found[::-1])}); nothing was deleted. "
                f"resume={run} from_scratch=true starts it again from step 0 and keeps them aside."
            )
        return None

    def best(self) -> SavedCheckpoint | None:
        """Return the undamaged checkpoint with the best value, or None if none has a value."""
        candidates = self.all()
        while best := self.rule.best(candidates):
            if find_damage(best.path) is None:
                return best
            candidates.remove(best)
        return None

    def _list_complete(self) -> list[Path]:
        """Return the folders of complete checkpoints by step, first one that a kill has left under its temporary name."""
        left = [p for p in self._list_folders() if p.suffix != ".removed"]
        complete = [p for p in left if p.name[0] != "." or (p / MANIFEST).exists()]
        return sorted(complete, key=lambda p: (parse_folder(p) or 0, p.name[0] != "."))

    def _list_folders(self) -> list[Path]:
        """Return the folders named like a checkpoint, hidden ones first."""
        if not self.folder.is_dir():
            return []
        named = [p for p in sorted(self.folder.iterdir()) if parse_folder(p) is not None]
        return [p for p in named if not p.is_symlink() and p.is_dir()]

    def _install(self, temporary: Path, step: int) -> SavedCheckpoint:
        """Read all of a checkpoint back, rename it, and only then remove older ones."""
        if damage := find_damage(temporary):
            raise OSError(f"{temporary} reads back differently from what was written: {damage}")
        final = self.folder / folder_name(step)
        # the same step again; after a kill here, the new one counts by its manifest
        if os.path.lexists(final):
            if _is_owned(self._place(final.name)) and find_damage(final) is None:
                self.remove(final)
                self._damaged.pop(final, None)
            else:
                self._keep_damaged(final)
        move(temporary, final)
        sync_folder(self.folder)
        self._clean(final)
        return load_manifest(final)

    def _clean(self, written: Path) -> None:
        """Rewrite the pointers, and remove checkpoints that the rule does not keep."""
        complete = self.all()
        old = {s.path for s in complete if s.path != written and s.path.name.startswith(f".{written.name}.")}
        saved = [s for s in complete if s.path not in {*self._damaged, *old}]
        kept, readable = {written} | self.rule.kept(saved), {s.path for s in complete}
        for name, pointed in {"newest": saved[-1], "best": self.rule.best(saved)}.items():
            try:
                if pointed:
                    write_atomic(self.folder / name, f"{pointed.path.name}\n")
            except OSError as error:  # resuming does not need it
                print_once(
                    f"{self.folder / name} can't be written ({error.strerror or error}); training continues, and the next checkpoint "
                    "writes it again."
                )
        for path in [p for p in self._list_folders() if p not in kept]:
            if path not in self._damaged and (path in readable or path.name.startswith(".")):
                self.remove(path)
            elif _is_owned(self._place(path.name)):
                self._keep_damaged(path)

    # --- folders of this run ---------------------------------------------------------------------------------------------

    def _place(self, name: str) -> OwnedFolder:
        return owned_folder(self.folder.parent, (self.folder.name, name), self.folder.parent.name)

    def remove(self, path: Path) -> None:
        """Remove a checkpoint of this run, complete or not."""
        remove(self._place(path.name))

    def _keep_damaged(self, path: Path) -> None:
        damage = find_damage(path) or self._damaged.get(path, "not of this run")
        kept = set_aside(path, "damaged")
        self._damaged.pop(path, None)
        print_line(f"checkpoint {path} ({damage}) is kept as {kept}; remove it when you don't need it.")
