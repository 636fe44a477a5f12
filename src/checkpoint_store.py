"""The checkpoints of a run folder: complete or absent, checked by checksums, both frameworks alike.

    checkpoints/00000230/   the framework's files + manifest.json (step, position, metrics, size and sha256 of each file)
    checkpoints/newest      name of the newest one      checkpoints/best      name of the best one
"""

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from src.rundir import write_atomic


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint.

    Attributes:
        path: its folder.
        step: optimizer steps done.
        epoch, batch: position; the next batch to train is number `batch` of epoch `epoch`, both from 0.
        metrics: flat, the newest values when it was written.
        value: of `checkpoint.monitor`, None before the first validation.
        framework: which side wrote it.
    """

    path: Path
    step: int
    epoch: int
    batch: int
    metrics: dict[str, float]
    value: float | None
    framework: str


class CheckpointStore:
    """Writes and finds checkpoints below one folder.

    Args:
        folder: `checkpoints/` of the run folder.
        mode: whether the best `value` is the smallest or the largest.
        keep_last: how many of the newest are kept; the best one is kept besides.
    """

    def __init__(self, folder: Path, mode: Literal["min", "max"], keep_last: int) -> None:
        self.folder, self.mode, self.keep_last = folder, mode, keep_last

    def begin(self, step: int) -> Path:
        """A new empty temporary folder to write the files of a checkpoint into."""
        temporary = self.folder / f".{step:08d}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        return temporary

    def commit(
        self,
        temporary: Path,
        *,
        step: int,
        epoch: int,
        batch: int,
        metrics: dict[str, float],
        value: float | None,
        framework: str,
    ) -> Saved:
        """Make the files below `temporary` a checkpoint: data and manifest to disk first, one rename last."""
        files = {str(p.relative_to(temporary)): _fingerprint(p) for p in sorted(temporary.rglob("*")) if p.is_file()}
        facts = dict(step=step, epoch=epoch, batch=batch, metrics=metrics, value=value, framework=framework)
        write_atomic(temporary / "manifest.json", json.dumps({**facts, "files": files}, indent=2) + "\n")
        _sync_folder(temporary)
        final = self.folder / f"{step:08d}"
        if final.exists():  # written again after a resume from an older one
            final.rename(temporary.with_name(temporary.name + ".old"))
        temporary.rename(final)
        _sync_folder(self.folder)
        saved = Saved(path=final, **facts)
        self._point(saved)
        return saved

    def newest_good(self) -> Saved | None:
        """The newest checkpoint whose checksums hold; each damaged one is skipped with a line that says so."""
        for path in reversed(self._complete()):
            damage = damage_of(path)
            if damage is None:
                return load_manifest(path)
            print(f"checkpoint {path} is damaged ({damage}); trying the one before.", file=sys.stderr, flush=True)
        return None

    def best(self) -> Saved | None:
        """The undamaged checkpoint with the best value, None where none has one; of equal ones the newest."""
        return self._best_of([p for p in self._complete() if damage_of(p) is None])

    def _best_of(self, paths: list[Path]) -> Saved | None:
        valued = [s for s in map(load_manifest, paths) if s.value is not None]
        sign = 1 if self.mode == "max" else -1
        return max(valued, key=lambda s: (sign * (s.value or 0.0), s.step), default=None)

    def _complete(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("[0-9]*") if p.is_dir())

    def _point(self, newest: Saved) -> None:
        """Renew the pointers; remove what is neither newest nor best, and what a killed process left half-written."""
        paths = [p for p in self._complete() if (p / "manifest.json").is_file()]
        best = self._best_of(paths)
        write_atomic(self.folder / "newest", newest.path.name + "\n")
        if best:
            write_atomic(self.folder / "best", best.path.name + "\n")
        keep = {*paths[-self.keep_last :], best.path if best else newest.path}
        for path in {*self._complete(), *self.folder.glob(".[0-9]*")} - keep:
            shutil.rmtree(path, ignore_errors=True)


def load_manifest(path: Path) -> Saved:
    """The facts of the checkpoint in folder `path`."""
    facts: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    facts.pop("files")
    return Saved(path=path, **facts)


def damage_of(path: Path) -> str | None:
    """What is wrong with the checkpoint in folder `path`, in a few words, or None when all checksums hold."""
    try:
        files = json.loads((path / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError):
        return "no readable manifest.json"
    for name, expected in files.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if _fingerprint(path / name) != expected:
            return f"{name} does not match its checksum"
    return None


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"size": path.stat().st_size, "sha256": digest}


def _sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
