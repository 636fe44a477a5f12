"""The files of one checkpoint: its manifest, checksums, and a copy that reaches the disk.

A manifest names each file with its size and, once the checkpoint is in the run folder, its sha256.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from train_anywhere.checkpoints.disk.writes import CHUNK, sync_folder, write_all
from train_anywhere.checkpoints.info import INFO_FIELDS, CheckpointInfo, SavedCheckpoint
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.marked import MARKER
from train_anywhere.files.ordinary import open_file
from train_anywhere.files.plain_json import dumps

MANIFEST = "manifest.json"

Files = dict[str, dict[str, Any]]
"""Size and sha256 of each file by its path in the checkpoint's folder."""


def write_manifest(folder: Path, info: CheckpointInfo, files: Files, **more: str) -> None:
    """Record what the folder holds. Metrics that are nan or inf are left out."""
    metrics = {k: v for k, v in info.metrics.items() if math.isfinite(v)}
    fields = {name: getattr(info, name) for name in INFO_FIELDS}
    write_atomic(folder / MANIFEST, dumps({**fields, **more, "metrics": metrics, "files": files}))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the checkpoint in `folder`. Raises OSError or ValueError if there is none."""
    try:
        manifest: dict[str, Any] = json.loads(read_text(folder / MANIFEST))
    except RecursionError as error:
        raise ValueError(f"{folder / MANIFEST} is not a manifest") from error
    if not isinstance(manifest, dict) or not _are_files(manifest.get("files")):
        raise ValueError(f"{folder / MANIFEST} is not a manifest")
    return manifest


def _are_files(files: object) -> bool:
    """Whether it is of the type `Files`, and names nothing outside of the checkpoint's folder."""
    if not isinstance(files, dict):
        return False
    paths = (PurePosixPath(name) for name in files)
    inside = all(path.parts and not path.is_absolute() and ".." not in path.parts for path in paths)
    return inside and all(isinstance(f, dict) and type(f.get("size")) is int for f in files.values())


def load_manifest(folder: Path) -> SavedCheckpoint:
    """The checkpoint in `folder`, from its manifest. Raises OSError or ValueError if it can't be read."""
    manifest = read_manifest(folder)
    try:
        saved = SavedCheckpoint(path=folder, **{name: manifest[name] for name in INFO_FIELDS})
    except KeyError as missing:
        raise ValueError(f"{folder / MANIFEST} has no {missing}") from missing
    position = (saved.step, saved.epoch, saved.batch)
    numbers = [*saved.metrics.values(), saved.value or 0.0] if isinstance(saved.metrics, dict) else [None]
    if not all(type(n) is int and n >= 0 for n in position) or not all(
        type(n) in (int, float) for n in numbers
    ):
        raise ValueError(f"{folder / MANIFEST} has values that no checkpoint has")
    return saved


def name_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"{step:08d}"


def step_of(name: str) -> int | None:
    """The step of the checkpoint whose folder has that name; None if it is not the name of a checkpoint."""
    return int(name) if re.fullmatch("[0-9]{8,19}", name) and name == name_of(int(name)) else None


def marker_of(run: str, step: int) -> str:
    """The marker of a checkpoint's folder, see `files/removal.py`; `run` is the run id."""
    return f"checkpoint {name_of(step)} of run {run}"


def payload(folder: Path) -> list[str]:
    """The framework's files below `folder`."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, MARKER))
    return [str(p.relative_to(folder)) for p in paths]


def sizes(folder: Path) -> Files:
    """The files below `folder`, not yet checksummed."""
    return {name: {"size": (folder / name).stat().st_size} for name in payload(folder)}


def flush(folder: Path) -> Files:
    """Flush the files below `folder` to the disk, and checksum them."""
    files: Files = {}
    for name in payload(folder):
        with open(folder / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            files[name] = {"size": file.tell(), "sha256": digest}
    sync_folder(folder)
    return files


def copy(source: Path, target: Path, pause: Callable[[], None]) -> Files:
    """Copy the files that the manifest of `source` names to disk in `target`, checksummed on the way.

    Args:
        pause: called before each chunk is written, to let more urgent work run.

    Raises:
        OSError: a file can't be read or written, or does not have the size in the manifest.
    """
    files: Files = {}
    for name, known in read_manifest(source)["files"].items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        files[name] = copy_file(source / name, target / name, pause)
        if files[name]["size"] != known["size"]:
            raise OSError(f"{source / name} has {files[name]['size']} bytes instead of {known['size']}")
    sync_folder(target)
    return files


def copy_file(source: Path, target: Path, pause: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Copy one file to disk, and return its size and checksum. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    chunk = memoryview(bytearray(CHUNK))
    with open(source, "rb", buffering=0) as reader, open_file(target, "wb") as writer:
        while read := reader.readinto(chunk):
            pause()
            digest.update(chunk[:read])
            size += read
            write_all(writer.fileno(), chunk[:read])
        os.fsync(writer.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def damage_of(folder: Path, checksums: bool = True) -> str | None:
    """What is wrong with the checkpoint in `folder`, in a few words; None if its checksums match.

    Args:
        checksums: False compares sizes alone, which takes no time however large the files are.
    """
    try:
        files = read_manifest(folder)["files"]
        load_manifest(folder)
    except (OSError, ValueError):
        return "no readable manifest.json"
    for name, expected in files.items():
        try:
            if _differs(folder / name, expected if checksums else {"size": expected["size"]}):
                return f"{name} does not match its checksum"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} can't be read: {error.strerror}"
    return None


def _differs(path: Path, expected: dict[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != expected["size"] or not stat.S_ISREG(status.st_mode):
        return True
    if "sha256" not in expected:
        return False
    with open(path, "rb") as file:
        if hasattr(os, "posix_fadvise"):  # read from the disk, not from the page cache
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]
