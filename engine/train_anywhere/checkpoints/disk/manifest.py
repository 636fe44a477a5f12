"""The manifest and checksums of a checkpoint, and flushed copies of its files.

A manifest names each file with its size and, if the checkpoint is in the run folder, its sha256.
"""

import hashlib
import math
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from train_anywhere.files.atomic import dumps, loads, open_file, read_text, write_atomic
from train_anywhere.files.copy_files import CHUNK, sync_folder, write_all
from train_anywhere.files.removal import MARKER, OwnedFolder
from train_anywhere.runs.folder import FORMAT

OWN_LOOP = "own loop"
"""The framework of a checkpoint whose files a loop of the user's has written."""


@dataclass(frozen=True)
class CheckpointInfo:
    """Position and metrics of the training when it is saved.

    Attributes:
        epoch, batch: the next batch to train is number `batch` of epoch `epoch`, both counted from 0.
        value: value of `checkpoint.monitor`; None if it was not measured at this step.
        seconds: time of training so far, over all attempts of the run.
    """

    step: int
    epoch: int
    batch: int
    metrics: dict[str, float]
    value: float | None
    framework: str
    seconds: float = field(default=0.0, kw_only=True)


INFO_FIELDS = tuple(CheckpointInfo.__dataclass_fields__)
"""Names of the fields in a manifest."""

MANIFEST = "manifest.json"

Files = dict[str, dict[str, Any]]
"""Size and sha256 of each file by its path in the checkpoint's folder."""


@dataclass(frozen=True)
class SavedCheckpoint(CheckpointInfo):
    """A complete checkpoint in the folder `path`.

    Attributes:
        boot: `boot_id()` of the node on whose disk it is; None in the run folder.
    """

    path: Path
    files: Files = field(default_factory=dict, kw_only=True, compare=False)
    boot: str | None = field(default=None, kw_only=True, compare=False)


class OtherVersionError(ValueError):
    """A checkpoint that another version of this project has written."""


def write_manifest(folder: Path, info: CheckpointInfo, files: Files, **more: str) -> None:
    """Write the manifest of a checkpoint, without metrics that are nan or inf."""
    metrics = {k: v for k, v in info.metrics.items() if math.isfinite(v)}
    fields = {name: getattr(info, name) for name in INFO_FIELDS}
    content = {"format": FORMAT, **fields, **more, "metrics": metrics, "files": files}
    write_atomic(folder / MANIFEST, dumps(content))


def load_manifest(folder: Path) -> SavedCheckpoint:
    """Return the checkpoint in `folder` from its manifest. Raises OSError, ValueError."""
    manifest: Any = loads(read_text(folder / MANIFEST))
    if not isinstance(manifest, dict) or not _are_files(manifest.get("files")):
        raise ValueError(f"{folder / MANIFEST} is not a manifest")
    if (found := manifest.get("format")) != FORMAT:
        raise OtherVersionError(f"another version of this project wrote it: format {found}, not {FORMAT}")
    known: Any = {name: manifest.get(name) for name in (*INFO_FIELDS, "files")}
    saved = SavedCheckpoint(path=folder, boot=manifest.get("boot"), **known)
    position = (saved.step, saved.epoch, saved.batch)
    metrics = saved.metrics.values() if isinstance(saved.metrics, dict) else [None]
    numbers = [*metrics, saved.value or 0.0, saved.seconds]
    valid_position = all(type(n) is int and n >= 0 for n in position)
    if not valid_position or not all(type(n) in (int, float) for n in numbers):
        raise ValueError(f"{folder / MANIFEST} has values that no checkpoint has")
    return saved


def _are_files(files: object) -> bool:
    """Return whether `files` is a `Files` that names only files in the checkpoint's folder."""
    if not isinstance(files, dict):
        return False
    paths = (PurePosixPath(name) for name in files)
    inside = all(path.parts and not path.is_absolute() and ".." not in path.parts for path in paths)
    return inside and all(isinstance(f, dict) and type(f.get("size")) is int for f in files.values())


def folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{step:08d}"


def parse_step(name: str) -> int | None:
    """Return the step of the checkpoint in a folder of that name, or None."""
    return int(name) if re.fullmatch("[0-9]{8,19}", name) and name == folder_name(int(name)) else None


def parse_folder(path: Path) -> int | None:
    """Return the step of a checkpoint's folder, also a hidden one, or None."""
    hidden = re.fullmatch(r"\.([0-9]+)\.([0-9]+|removed|replaced)", path.name)
    return parse_step(hidden[1] if hidden else path.name)


def owned_folder(root: Path, names: tuple[str, ...], run: str) -> OwnedFolder:
    """Return a checkpoint's folder, also a hidden one, as one of `run` that may be removed: see `files/removal.py`."""
    step = parse_folder(Path(names[-1]))
    assert step is not None, names
    return OwnedFolder(root, names, f"checkpoint {folder_name(step)} of run {run}")


def list_files(folder: Path) -> list[str]:
    """Return the framework's files below `folder`."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in (MANIFEST, MARKER))
    return [str(p.relative_to(folder)) for p in paths]


def list_sizes(folder: Path) -> Files:
    """Return the sizes of the files below `folder`, without checksums."""
    return {name: {"size": (folder / name).stat().st_size} for name in list_files(folder)}


def flush_files(folder: Path) -> Files:
    """Flush the files below `folder` to disk, and return their sizes and checksums."""
    files: Files = {}
    for name in list_files(folder):
        with open(folder / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            files[name] = {"size": file.tell(), "sha256": digest}
    sync_folder(folder)
    return files


def copy_files(saved: SavedCheckpoint, target: Path, pause: Callable[[], None]) -> Files:
    """Copy and flush the files of a checkpoint, and return their sizes and checksums.

    `pause` is called before each chunk, so that more urgent work can run. Raises OSError, also for a file of another size.
    """
    files: Files = {}
    for name, known in saved.files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        files[name] = copy_file(saved.path / name, target / name, pause)
        if files[name]["size"] != known["size"]:
            raise OSError(f"{saved.path / name} has {files[name]['size']} bytes instead of {known['size']}")
    sync_folder(target)
    return files


def copy_file(source: Path, target: Path, pause: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Copy and flush one file, and return its size and checksum. Raises OSError."""
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


def find_damage(folder: Path, checksums: bool = True) -> str | None:
    """Return what is wrong with a checkpoint, or None. Without `checksums` compare sizes."""
    try:
        saved = load_manifest(folder)
    except OtherVersionError as error:
        return str(error)
    except (OSError, ValueError):
        return "no readable manifest.json"
    if parse_folder(folder) not in (None, saved.step):
        return "its manifest.json is of another step"
    for name, expected in saved.files.items():
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
