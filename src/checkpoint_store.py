"""The checkpoints of a run folder: complete or absent, checked by checksums, both frameworks alike.

checkpoints/00000230/    the framework's files, and manifest.json: step, position, metrics, checksums
checkpoints/newest       name of the newest one      checkpoints/best      name of the best one
checkpoints/index.json   which ones there are, and why each is kept
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from src.checkpoint_files import (
    FACTS,
    copy,
    damage_of,
    flush,
    load_manifest,
    read_manifest,
    sync_folder,
    write_manifest,
)
from src.errors import CheckpointError
from src.from_scratch import none_can_be_read
from src.plain_json import dumps
from src.retention import Retention, Saved
from src.rundir import write_atomic

__all__ = ["CheckpointStore", "Saved"]


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
        self._damaged: set[Path] = set()

    def begin(self, step: int) -> Path:
        """A new empty temporary folder to write the files of a checkpoint into."""
        temporary = self.folder / f".{step:08d}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        return temporary

    def commit(self, temporary: Path, **facts: Any) -> Saved:
        """Make the files below `temporary` a checkpoint: data and manifest to disk first, one rename last.

        Args:
            facts: step, epoch, batch, metrics, value and framework, see `Saved`.

        Raises:
            OSError: where the disk does not take it; the checkpoints from before are all still there.
        """
        write_manifest(temporary, facts, flush(temporary))
        return self._install(temporary, facts["step"])

    def publish(self, source: Path, pause: Callable[[], None] = lambda: None) -> Saved:
        """Copy a complete checkpoint from elsewhere, such as a node's own disk, in here.

        Args:
            pause: called between chunks of data.

        Raises:
            OSError: where that fails; nothing is left of it here, and the ones from before are all there.
        """
        manifest = read_manifest(source)
        temporary = self.begin(manifest["step"])
        try:
            files = copy(source, temporary, pause)
            write_manifest(temporary, {name: manifest[name] for name in FACTS}, files)
            return self._install(temporary, manifest["step"])
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def all(self) -> list[Saved]:
        """Every checkpoint with a readable manifest, by step."""
        found = []
        for path in self._complete():
            try:
                found.append(load_manifest(path))
            except (OSError, ValueError):
                continue
        return found

    def newest_good(self) -> Saved | None:
        """The newest checkpoint whose checksums hold, None where there is none at all; a damaged one is told and skipped.

        The damaged ones are removed at the next commit: the run goes on from before them.

        Raises:
            CheckpointError: where all are damaged.
        """
        found: list[str] = []
        for path in reversed(self._complete()):
            damage = damage_of(path)
            if damage is None:
                return load_manifest(path)
            self._damaged.add(path)
            found.append(f"{path.name}: {damage}")
            line = f"checkpoint {path} is damaged ({damage}); trying the one before."
            print(line, file=sys.stderr, flush=True)
        if found:
            raise CheckpointError(none_can_be_read(self.folder.parent, found))
        return None

    def best(self) -> Saved | None:
        """The undamaged checkpoint with the best value, None where none has one; of equal ones the newest."""
        candidates = self.all()
        while best := self.rule.best(candidates):
            if damage_of(best.path) is None:
                return best
            candidates.remove(best)
        return None

    def _complete(self) -> list[Path]:
        """By step; NAME.old, which another of the same step is about to replace, before NAME."""
        folders = [p for p in self.folder.glob("[0-9]*") if p.is_dir() and p.stem.isdigit()]
        return sorted(folders, key=lambda p: (int(p.stem), p.suffix != ".old"))

    def _install(self, temporary: Path, step: int) -> Saved:
        """One rename; then all of it is read again, and only then older ones are removed."""
        final = self.folder / f"{step:08d}"
        old = final.with_name(final.name + ".old")
        if final.exists():  # written again: the one from before stays until the new one is verified
            _remove(old)
            final.rename(old)
        temporary.rename(final)
        sync_folder(self.folder)
        damage = damage_of(final)
        if damage:
            _remove(final)
            raise OSError(f"what was read back of {final} is not what was written: {damage}")
        self._damaged.discard(final)
        self._clean(final, superseded={old, *self._damaged})
        return load_manifest(final)

    def _clean(self, written: Path, superseded: set[Path]) -> None:
        """Renew pointers and index; remove what is not kept, and what a killed process left half-written."""
        saved = [s for s in self.all() if s.path not in superseded]
        why, best = {written: ["just written"]} | self.rule.reasons(saved), self.rule.best(saved)
        kept = [s for s in saved if s.path in why]
        index = [{"name": s.path.name, "step": s.step, "value": s.value, "kept": why[s.path]} for s in kept]
        write_atomic(self.folder / "index.json", dumps(index))
        write_atomic(self.folder / "newest", kept[-1].path.name + "\n")
        if best:
            write_atomic(self.folder / "best", best.path.name + "\n")
        for path in {*self._complete(), *self.folder.glob(".[0-9]*")} - set(why):
            _remove(path)


def _remove(folder: Path) -> None:
    """Out of sight in one step, so that a kill leaves no half of a checkpoint; then delete."""
    hidden = folder.with_name(f".{folder.name.lstrip('.')}.removed")
    try:
        folder.rename(hidden)
    except OSError:
        hidden = folder
    shutil.rmtree(hidden, ignore_errors=True)
