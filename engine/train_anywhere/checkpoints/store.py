"""The checkpoints of a run folder: complete or absent, checked by checksums, both frameworks alike.

checkpoints/00000230/            the framework's files, and manifest.json: step, position, metrics, checksums
checkpoints/newest               name of the newest one      checkpoints/best      name of the best one
checkpoints/index.json           the checkpoints, and why each is kept
checkpoints/00000230.damaged-1/  one whose checksums did not match; never removed

Other names are ignored. Only what `files/removal.py` can prove to be of this run is removed.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from train_anywhere.checkpoints.disk.manifest import (
    MANIFEST,
    copy,
    damage_of,
    flush,
    load_manifest,
    marker_of,
    name_of,
    read_manifest,
    step_of,
    write_manifest,
)
from train_anywhere.checkpoints.disk.writes import say, sync_folder
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.retention import Retention
from train_anywhere.checkpoints.usable import none_can_be_read
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import move, set_aside, write_atomic
from train_anywhere.files.marked import MARKER, NotOurs, Place, adopt, check
from train_anywhere.files.plain_json import dumps
from train_anywhere.files.removal import make_empty, remove, say_once

REPLACED = "replaced"
"""Ending of the hidden name of a checkpoint while another one of its step is written and verified."""


class CheckpointStore:
    """Writes and finds checkpoints below one folder. Only one process at a time may write.

    Args:
        folder: `checkpoints/` of the run folder.
        mode, keep_last, keep_every_n_epochs: which ones are kept, see `Retention`.
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

    def begin(self, step: int) -> Path:
        """A new empty temporary folder to write the files of a checkpoint into. Raises OSError."""
        place = self._place(step, f".{name_of(step)}.{os.getpid()}")
        make_empty(place)
        return place.path

    def give_up(self, temporary: Path) -> None:
        """Remove what `begin` made."""
        self._remove(temporary)

    def commit(self, temporary: Path, info: CheckpointInfo) -> SavedCheckpoint:
        """Make the files below `temporary` a checkpoint: data and manifest to disk first, one rename last.

        Raises:
            OSError: the disk does not take it; all earlier checkpoints are still there.
        """
        write_manifest(temporary, info, flush(temporary))
        return self._install(temporary, info.step)

    def publish(self, source: Path, pause: Callable[[], None] = lambda: None) -> SavedCheckpoint:
        """Copy a complete checkpoint from elsewhere, such as a node's own disk, into this folder.

        Args:
            pause: called between chunks of data.

        Raises:
            OSError: that failed; nothing of it is left here, and all earlier checkpoints are still there.
        """
        info = load_manifest(source)
        temporary = self.begin(info.step)
        try:
            write_manifest(temporary, info, copy(source, temporary, pause))
            return self._install(temporary, info.step)
        except OSError:
            self.give_up(temporary)
            raise

    def all(self) -> list[SavedCheckpoint]:
        """Every checkpoint with a readable manifest, by step."""
        found = []
        for path in self._complete():
            try:
                found.append(load_manifest(path))
            except (OSError, ValueError):
                continue
        return found

    def newest_good(self, until: int | None = None) -> SavedCheckpoint | None:
        """The newest checkpoint whose checksums match, None if there is none at all; damaged ones are reported and skipped.

        The damaged ones are set aside at the next commit: the run resumes from before them.

        Args:
            until: those of later steps are set aside too: what the run had computed after it was no number.

        Raises:
            CheckpointError: all are damaged; they stay as they are.
        """
        complete, found = self._complete(), list[str]()
        while complete:
            path = complete.pop()
            if until is not None and (_step(path) or 0) > until:
                self._damaged[path] = "of steps that are computed again"
                continue
            damage = self._damage(path)
            if damage is None:
                return load_manifest(path)
            self._damaged[path] = damage
            found.append(f"{path.name}: {damage}")
            then = "trying the one before" if complete else "there is none before it"
            say(f"checkpoint {path} is damaged ({damage}); {then}.")
        if found:
            raise CheckpointError(none_can_be_read(self.folder.parent, found))
        return None

    def best(self) -> SavedCheckpoint | None:
        """The undamaged checkpoint with the best value, None if none has a value; the newest of equal ones."""
        candidates = self.all()
        while best := self.rule.best(candidates):
            if self._damage(best.path) is None:
                return best
            candidates.remove(best)
        return None

    def _complete(self) -> list[Path]:
        """Folders of complete checkpoints by step; of two with the same step, the one about to be replaced comes first."""
        found = [(step, p) for p in self._folders() if (step := _step(p)) is not None and _is_complete(p)]
        return [p for _, p in sorted(found, key=lambda pair: (pair[0], not pair[1].name.startswith(".")))]

    def _folders(self) -> list[Path]:
        """Folders that are named like a checkpoint, complete or not; hidden ones first."""
        if not self.folder.is_dir():
            return []
        return [
            p
            for p in sorted(self.folder.iterdir())
            if _step(p) is not None and not p.is_symlink() and p.is_dir()
        ]

    def _damage(self, path: Path) -> str | None:
        damage = damage_of(path)
        if damage is None and load_manifest(path).step != _step(path):
            return "its manifest.json is of another step"
        return damage

    def _install(self, temporary: Path, step: int) -> SavedCheckpoint:
        """Rename it into place, read all of it back, and only then remove older ones."""
        final = self.folder / name_of(step)
        replaced = self.folder / f".{final.name}.{REPLACED}"
        if os.path.lexists(final):  # written again: the earlier one stays until the new one is verified
            self._make_room(final, replaced)
        move(temporary, final)
        sync_folder(self.folder)
        damage = self._damage(final)
        if damage:
            self._remove(final)
            raise OSError(f"{final} reads back differently from what was written: {damage}")
        self._clean(final, superseded={replaced, *self._damaged})
        return load_manifest(final)

    def _make_room(self, final: Path, replaced: Path) -> None:
        if self._is_ours(final) and self._damage(final) is None:
            if os.path.lexists(replaced):
                self._remove(replaced)
            move(final, replaced)
            self._damaged.pop(final, None)
        else:
            self._set_aside(final)

    def _clean(self, written: Path, superseded: set[Path]) -> None:
        """Renew pointers and index; remove checkpoints that are not kept or were left half-written by a killed process."""
        complete = self.all()
        saved = [s for s in complete if s.path not in superseded]
        why, best = {written: ["just written"]} | self.rule.reasons(saved), self.rule.best(saved)
        kept = [s for s in saved if s.path in why]
        index = [{"name": s.path.name, "step": s.step, "value": s.value, "kept": why[s.path]} for s in kept]
        self._point("index.json", dumps(index))
        self._point("newest", kept[-1].path.name + "\n")
        if best:
            self._point("best", best.path.name + "\n")
        readable = {s.path for s in complete}
        for path in [p for p in self._folders() if p not in why]:
            if path not in self._damaged and (path in readable or path.name.startswith(".")):
                self._remove(path)
            elif self._is_ours(path):
                self._set_aside(path)

    def _point(self, name: str, text: str) -> None:
        """Write a file that says which checkpoint is which; resuming does without, and the next checkpoint writes it again."""
        try:
            write_atomic(self.folder / name, text)
        except OSError as error:
            say_once(
                f"{self.folder / name} can't be written ({error.strerror or error}); training continues, and the next checkpoint "
                "writes it again."
            )

    # --- folders of this run ---------------------------------------------------------------------------------------------

    def _place(self, step: int, name: str) -> Place:
        run = self.folder.parent
        return Place(run, (self.folder.name, name), marker_of(run.name, step))

    def _remove(self, path: Path) -> None:
        step = _step(path)
        assert step is not None, path
        hidden = "" if path.name.startswith(".") else f".{path.name}.removed"
        self._adopt(path, step)
        remove(self._place(step, path.name), hidden)

    def _is_ours(self, path: Path) -> bool:
        step = _step(path)
        assert step is not None, path
        self._adopt(path, step)
        try:
            check(self._place(step, path.name))
        except (NotOurs, FileNotFoundError):
            return False
        return True

    def _adopt(self, path: Path, step: int) -> None:
        """Mark a checkpoint of a version without markers, if its manifest is of this step and names every file in it."""
        if os.path.lexists(path / MARKER):
            return
        try:
            manifest = read_manifest(path)
        except (OSError, ValueError):
            return
        inside = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_symlink() or not p.is_dir()}
        if manifest.get("step") == step and inside <= {MANIFEST, *manifest["files"]}:
            adopt(self._place(step, path.name))

    def _set_aside(self, path: Path) -> None:
        damage = self._damage(path) or self._damaged.get(path, "not of this run")
        kept = set_aside(path, "damaged")
        self._damaged.pop(path, None)
        say(f"checkpoint {path} ({damage}) is kept as {kept}; remove it when you don't need it.")


def _step(path: Path) -> int | None:
    """The step of a checkpoint's folder: complete, about to be replaced, or half-written; None for any other name."""
    hidden = re.fullmatch(rf"\.([0-9]+)\.([0-9]+|removed|{REPLACED})", path.name)
    return step_of(hidden[1] if hidden else path.name)


def _is_complete(path: Path) -> bool:
    return not path.name.startswith(".") or path.name.endswith(REPLACED)
