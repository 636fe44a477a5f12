"""A node's own disk, where a checkpoint is safe from a crash of the training within a moment of being made.

<local disk>/<name>-<user id>/<run id>/00000230/   complete, not yet in the run folder
                                      growing-<boot>/   TensorBoard's files, see `src/checkpoints/event_files.py`

`stage.json` in the run folder says where that was, for whoever comes after a crash: the variables that named the local disk
may have gone with the job. It is believed only where that path ends in the name, the user id and the run id of this very
run, and a folder is there that `src/files/removal.py` can prove to be this run's: no link below the local disk, this user's alone,
with the marker of the run.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from src.checkpoints.manifest import (
    damage_of,
    load_manifest,
    marker_of,
    name_of,
    read_manifest,
    sizes,
    step_of,
    write_manifest,
)
from src.checkpoints.retention import Retention, Saved
from src.files.atomic import move, read_text, write_atomic
from src.files.marked import NotOurs, Place, check, make
from src.files.removal import make_empty, remove, say_once
from src.runs.folder import RunDir

RECORD = "stage.json"
"""File in `checkpoints/` that tells where the node's disk is, and by what rule checkpoints are kept."""

Write = Callable[[Path], None]
"""Writes the files of a checkpoint into a folder."""


class Stage:
    """Complete checkpoints on this node's disk.

    They carry sizes and no checksums: a file that was closed before its folder was renamed is whole, whatever
    happens to the process. That ends with the machine's next start: those from before it are not trusted.

    Args:
        folder: <local disk>/<name>-<user id>/<run id>; made when the first checkpoint is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.growing = folder / f"growing-{boot()}"  # what a power cut left in those of before is not trusted
        self._place = Place(
            folder.parents[1], (folder.parent.name, folder.name), f"stage of run {folder.name}"
        )
        self._stays: set[Path] = set()  # what could not be removed

    def write(self, write: Write, facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint. Raises what `write` raises; nothing is left of it then."""
        self.own()
        name = name_of(facts["step"])
        temporary = self._checkpoint(facts["step"], f".{name}.{os.getpid()}")
        final = self._checkpoint(facts["step"], name)
        make_empty(temporary, private=True)
        try:
            write(temporary.path)
            write_manifest(temporary.path, {**facts, "boot": boot()}, sizes(temporary.path))
            remove(final)
            move(temporary.path, final.path)
        except BaseException:
            remove(temporary)
            raise
        return final.path

    def complete(self) -> list[Saved]:
        """The trustworthy ones, by step."""
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
        """Remove one, or take it for none any more where it can't be removed."""
        step = step_of(path.name)
        if step is None or not remove(self._checkpoint(step, path.name)):
            self._stays.add(path)

    def clear(self) -> None:
        """Remove all of them, once nothing here is needed any more."""
        remove(self._place)

    def owned(self) -> bool:
        """Whether the folder exists, and is this run's and this user's."""
        try:
            check(self._place, private=True)
        except OSError:
            return False
        return True

    def problem(self) -> str | None:
        """Why nothing may be written or removed there; None where nothing is in the way."""
        try:
            check(self._place, private=True)
        except NotOurs as why:
            return str(why)
        except OSError:
            return None  # it is not there, or its disk will tell
        return None

    def own(self) -> None:
        """Make the folder for this user only: what is loaded from it later must not come from others.

        Raises:
            OSError: where the disk refuses, or the folder is not provably this run's.
        """
        make(self._place, private=True)

    def _checkpoint(self, step: int, name: str) -> Place:
        return Place(self._place.root, (*self._place.names, name), marker_of(self.folder.name, step))


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
    for root in (Path(os.path.abspath(os.path.expandvars(r))) for r in roots if r):
        if wish != "auto" or (os.access(root, os.W_OK) and root.stat().st_dev != run.path.stat().st_dev):
            return Stage(root.joinpath(*names_of(run)))
    return None


def names_of(run: RunDir) -> tuple[str, str]:
    """Of the two folders below a local disk that hold what is of this run and this user."""
    return f"{run.path.parent.name}-{os.getuid()}", run.id


def write_record(run: RunDir, stage: Stage, rule: Retention) -> None:
    """Note in the run folder which node's disk holds its newest checkpoints."""
    run.checkpoints.mkdir(exist_ok=True)
    fields = {"host": socket.gethostname(), "folder": str(stage.folder), "rule": asdict(rule)}
    write_atomic(run.checkpoints / RECORD, json.dumps(fields, indent=2) + "\n")


def read_record(run: RunDir) -> tuple[Stage, Retention] | None:
    """Stage and rule of the run's newest part, where it trained on this node and the record can be believed.

    Where it can't, a line says so, and nothing there is touched.
    """
    record = run.checkpoints / RECORD
    try:
        fields = json.loads(read_text(record))
        if fields["host"] != socket.gethostname():
            return None
        return _stage(run, fields["folder"]), _rule(**fields["rule"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, NotOurs) else "it is damaged"
        say_once(f"{record} is ignored, and nothing that it names is touched: {why}.")
        return None


def _stage(run: RunDir, folder: str) -> Stage:
    """The stage at a recorded path. Raises NotOurs where that can't be this run's, or what is there is not."""
    path = Path(folder)
    if not path.is_absolute() or path.parts[-2:] != names_of(run) or ".." in path.parts or "\0" in folder:
        place = Path("<local disk>", *names_of(run))
        raise NotOurs(f"{folder} is not where this run puts checkpoints first, which is {place}")
    stage = Stage(path)
    if problem := stage.problem():
        raise NotOurs(problem)
    return stage


def _rule(mode: Any, keep_last: Any, keep_every_n_epochs: Any) -> Retention:
    """Raises ValueError for values that no configuration has."""
    counts = [keep_last] if keep_every_n_epochs is None else [keep_last, keep_every_n_epochs]
    if mode not in ("min", "max") or not all(type(n) is int and n >= 1 for n in counts):
        raise ValueError("no such rule")
    return Retention(mode, keep_last, keep_every_n_epochs)


def boot() -> str:
    """This machine since its last start; no other one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
