"""A node's own disk, where a checkpoint is safe from a crash of the training within a moment of being made.

<local disk>/<name>-<user id>/<run id>/00000230/   complete, not yet in the run folder
                                      growing-<boot>/   TensorBoard's files, see `src/mirror.py`
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from src.checkpoint_files import damage_of, load_manifest, read_manifest, sizes, write_manifest
from src.retention import Retention, Saved
from src.rundir import RunDir, write_atomic

RECORD = "stage.json"
"""File in `checkpoints/` that tells where the node's disk is, and by what rule checkpoints are kept."""

Write = Callable[[Path], None]
"""Writes the files of a checkpoint into a folder."""


class Stage:
    """Complete checkpoints on this node's disk.

    They carry sizes and no checksums: a file that was closed before its folder was renamed is whole, whatever
    happens to the process. That ends with the machine's next start: those from before it are not trusted.

    Args:
        folder: of this run; made when the first checkpoint is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.growing = folder / f"growing-{boot()}"  # what a power cut left in those of before is not trusted

    def write(self, write: Write, facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint. Raises what `write` raises; nothing is left of it then."""
        self.own()
        final = self.folder / f"{facts['step']:08d}"
        temporary = self.folder / f".{final.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            write(temporary)
            write_manifest(temporary, {**facts, "boot": boot()}, sizes(temporary))
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return final

    def complete(self) -> list[Saved]:
        """The trustworthy ones, by step."""
        if not self.owned():
            return []
        folders = (p for p in sorted(self.folder.glob("[0-9]*")) if damage_of(p) is None)
        return sorted(
            (load_manifest(p) for p in folders if read_manifest(p).get("boot") == boot()),
            key=lambda s: s.step,
        )

    def drop(self, path: Path) -> None:
        """Remove one."""
        shutil.rmtree(path, ignore_errors=True)

    def clear(self) -> None:
        """Remove all of them, once nothing here is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def owned(self) -> bool:
        """Whether the folder exists and is this user's."""
        return self.folder.is_dir() and self.folder.stat().st_uid == os.getuid()

    def own(self) -> None:
        """Make the folder for this user only: what is loaded from it later must not come from others.

        Raises:
            OSError: where the disk refuses, or the folder is another user's.
        """
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user")


def make_stage(run: RunDir, wish: str | None, environ: Mapping[str, str] = os.environ) -> Stage | None:
    """Where checkpoints of the run are written first, or None: straight into the run folder.

    Args:
        wish: `checkpoint.local`: null for none, a folder, or auto: the scheduler's folder for the job, or the
            node's disk, unless it is the very disk that the run folder is on. TRAIN_LOCAL_DISK is cluster.local_disk.
    """
    if wish is None:
        return None
    places = [environ.get(name) for name in ("TRAIN_LOCAL_DISK", "SLURM_TMPDIR", "TMPDIR")]
    roots = [*places, "/tmp"] if wish == "auto" else [wish]
    for root in (Path(os.path.expandvars(r)) for r in roots if r):
        if wish != "auto" or (os.access(root, os.W_OK) and root.stat().st_dev != run.path.stat().st_dev):
            return Stage(root / f"{run.path.parent.name}-{os.getuid()}" / run.id)
    return None


def write_record(run: RunDir, stage: Stage, rule: Retention) -> None:
    """Note in the run folder which node's disk holds its newest checkpoints."""
    run.checkpoints.mkdir(exist_ok=True)
    fields = {"host": socket.gethostname(), "folder": str(stage.folder), "rule": asdict(rule)}
    write_atomic(run.checkpoints / RECORD, json.dumps(fields, indent=2) + "\n")


def read_record(run: RunDir) -> tuple[Stage, Retention] | None:
    """Stage and rule of the run's newest part, where it trained on this node."""
    try:
        fields = json.loads((run.checkpoints / RECORD).read_text())
        rule = Retention(**fields["rule"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (Stage(Path(fields["folder"])), rule) if fields["host"] == socket.gethostname() else None


def boot() -> str:
    """This machine since its last start; no other one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
