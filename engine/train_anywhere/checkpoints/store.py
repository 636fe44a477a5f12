"""The checkpoints of a run folder, each complete or absent, and checked by checksums.

checkpoints/00000230/            the framework's files, and manifest.json: step, position, metrics, checksums
checkpoints/newest               name of the newest checkpoint      checkpoints/best      name of the best checkpoint
checkpoints/00000230.damaged-1/  a checkpoint whose checksums did not match; it is never removed

Other names are ignored. A folder is removed only if `files/removal.py` can prove that it belongs to this run.
"""

import os
import re
from collections.abc import Callable, Sequence
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
    load_manifest,
    ownership_marker,
    parse_step,
    write_manifest,
)
from train_anywhere.checkpoints.disk.staging import Retention, Write
from train_anywhere.errors import CheckpointError, listed
from train_anywhere.files.atomic import move, set_aside, write_atomic
from train_anywhere.files.copy_files import print_line, sync_folder
from train_anywhere.files.removal import (
    NotOwnedError,
    OwnedFolder,
    check_owned,
    new_folder,
    print_once,
    remove,
)
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.summary import is_program


def refuse_unreadable(run: RunDir) -> None:
    """Check the run's checkpoints before a submission, by file sizes. Raises CheckpointError.

    A run that was killed before its first checkpoint passes and starts at step 0, and so does a program.
    """
    if is_program(run):  # its files are its own
        return
    if run.checkpoints.exists() and not os.access(run.checkpoints, os.R_OK | os.X_OK):
        raise CheckpointError(f"{run.checkpoints} can't be read: you lack the permission to list it.")
    folders = sorted(p for p in run.checkpoints.glob("[0-9]*") if p.is_dir() and p.name.isdigit())
    damages = {p: find_damage(p, checksums=False) for p in folders}
    if folders and all(damages.values()):
        raise CheckpointError(unreadable_message(run.path, [f"{p.name}: {d}" for p, d in damages.items()]))
    info = {} if folders else run.read_info()
    if info.get("checkpoint") or any(attempt.get("from_step") for attempt in info.get(ATTEMPTS, [])):
        raise CheckpointError(
            f"{run.path} had a checkpoint, according to its run.json, but {run.checkpoints.name}/ has none: put it back, or "
            f"use resume={run.path} from_scratch=true to start again from step 0."
        )


def unreadable_message(run: Path, damages: Sequence[str]) -> str:
    """Return the message for a run whose checkpoints are all damaged."""
    count = f"{len(damages)} {'is' if len(damages) == 1 else 'are'} damaged"
    return (
        f"{run} has no checkpoint that can be read ({count}: {listed(damages)}); nothing was deleted. "
        f"resume={run} from_scratch=true starts it again from step 0 and keeps them aside."
    )


class CheckpointStore:
    """Reader and writer of the checkpoints in one folder. Only one process may write at a time.

    Args:
        mode, keep_last, keep_every_n_epochs: the rule by which checkpoints are kept, see `Retention`.
    """

    def __init__(
        self,
        folder: Path,
        mode: Literal["min", "max"],
        keep_last: int,
        keep_every_n_epochs: int | None = None,
    ) -> None:
        self.folder, self.rule = folder, Retention(mode, keep_last, keep_every_n_epochs)
        self._damaged: dict[Path, str] = {}

    def write(
        self, write: Write, info: CheckpointInfo, written: Callable[[], None] = lambda: None
    ) -> SavedCheckpoint:
        """Write a checkpoint. Raises OSError, and errors of `write`.

        `written` is called when the files are written, before they are flushed.
        """

        def fill(folder: Path) -> Files:
            write(folder)
            written()
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

    def newest_good(self) -> SavedCheckpoint | None:
        """Return the newest undamaged checkpoint, or None without any. Damaged ones are reported.

        The next commit renames those, because the run resumes from an earlier one. Raises CheckpointError if all are damaged.
        """
        complete, found = self._list_complete(), list[str]()
        while complete:
            path = complete.pop()
            damage = self._find_damage(path)
            if damage is None:
                return load_manifest(path)
            self._damaged[path] = damage
            found.append(f"{path.name}: {damage}")
            then = "trying the one before" if complete else "there is none before it"
            print_line(f"checkpoint {path} is damaged ({damage}); {then}.")
        if found:
            raise CheckpointError(unreadable_message(self.folder.parent, found))
        return None

    def best(self) -> SavedCheckpoint | None:
        """Return the undamaged checkpoint with the best value, or None if none has a value."""
        candidates = self.all()
        while best := self.rule.best(candidates):
            if self._find_damage(best.path) is None:
                return best
            candidates.remove(best)
        return None

    def _list_complete(self) -> list[Path]:
        """Return the folders of complete checkpoints by step, first one that a kill has left under its temporary name."""
        left = [p for p in self._list_folders() if p.suffix != ".removed"]
        complete = [p for p in left if p.name[0] != "." or (p / MANIFEST).exists()]
        return sorted(complete, key=lambda p: (_parse_folder(p) or 0, p.name[0] != "."))

    def _list_folders(self) -> list[Path]:
        """Return the folders named like a checkpoint, hidden ones first."""
        if not self.folder.is_dir():
            return []
        named = [p for p in sorted(self.folder.iterdir()) if _parse_folder(p) is not None]
        return [p for p in named if not p.is_symlink() and p.is_dir()]

    def _find_damage(self, path: Path) -> str | None:
        damage = find_damage(path)
        if damage is None and load_manifest(path).step != _parse_folder(path):
            return "its manifest.json is of another step"
        return damage

    def _install(self, temporary: Path, step: int) -> SavedCheckpoint:
        """Read all of a checkpoint back, rename it, and only then remove older ones."""
        if damage := self._find_damage(temporary):
            raise OSError(f"{temporary} reads back differently from what was written: {damage}")
        final = self.folder / folder_name(step)
        if os.path.lexists(
            final
        ):  # the same step again; after a kill here, the new one counts by its manifest
            if self._is_ours(final) and self._find_damage(final) is None:
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
            elif self._is_ours(path):
                self._keep_damaged(path)

    # --- folders of this run ---------------------------------------------------------------------------------------------

    def _place(self, name: str) -> OwnedFolder:
        run, step = self.folder.parent, _parse_folder(Path(name))
        assert step is not None, name
        return OwnedFolder(run, (self.folder.name, name), ownership_marker(run.name, step))

    def remove(self, path: Path) -> None:
        """Remove a checkpoint of this run, complete or not."""
        remove(self._place(path.name))

    def _is_ours(self, path: Path) -> bool:
        try:
            check_owned(self._place(path.name))
        except (NotOwnedError, FileNotFoundError):
            return False
        return True

    def _keep_damaged(self, path: Path) -> None:
        damage = self._find_damage(path) or self._damaged.get(path, "not of this run")
        kept = set_aside(path, "damaged")
        self._damaged.pop(path, None)
        print_line(f"checkpoint {path} ({damage}) is kept as {kept}; remove it when you don't need it.")


def _parse_folder(path: Path) -> int | None:
    """Return the step of a checkpoint's folder, also a hidden one, or None."""
    hidden = re.fullmatch(r"\.([0-9]+)\.([0-9]+|removed|replaced)", path.name)
    return parse_step(hidden[1] if hidden else path.name)
