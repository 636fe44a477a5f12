"""`data.stage=true`: what a data set reads is copied once to the disk of each node, and read there.

<local disk>/shared-<user id>/data-<path>-<state>/data    the copy; by the path of the source, and by names, sizes and times of its files
                              data-<path>.json            which copy the processes of a start take

The first process of a node looks at the source and copies it, the others wait, and take what it has found without looking
themselves. A tar file is unpacked. Where a copy can't be made, the node says why, and reads the source.
See `files/node_disk.py` for what is kept, and when it is removed.
"""

import hashlib
import json
import os
import socket
import tarfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from train_anywhere.config.paths import expand, here
from train_anywhere.data.archives import is_archive
from train_anywhere.data.known import Staged
from train_anywhere.errors import DataError
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.marked import make
from train_anywhere.files.node_disk import only_one, provide, shared
from train_anywhere.files.plain_json import loads
from train_anywhere.files.removal import say_once
from train_anywhere.files.terminal.byte_progress import Progress, telling

AT_ONCE = 8
"""Files that are copied at the same time: a shared disk answers each call slowly, and many at once."""

PIECE = 2**20
"""Bytes read at a time."""

FOLDER = "data"


@dataclass(frozen=True)
class Found:
    """What one look at the source has found.

    Attributes:
        start: which start of a run has looked, see `_start`.
        name: of the folder with the copy; None where the source itself is read.
        size, files: bytes and number of files.
    """

    start: str
    name: str | None
    size: int
    files: int


def staging(local_disk: str) -> Staged:
    """How the data set of a run is staged. Raises DataError for a disk that has no name here."""
    named = os.environ.get("TRAIN_LOCAL_DISK") or local_disk
    try:
        disk = Path(os.path.abspath(here(expand(named))))
    except ValueError as error:
        raise DataError(f"cluster.local_disk={named} {error}.") from error
    return partial(stage, disk=disk, start=_start())


def stage(source: Path, disk: Path, start: str) -> Path:
    """Where to read `source` on this node: the copy below `disk`, which is made if it is not there; else `source` itself.

    Raises:
        DataError: `source` is a tar file, and can't be unpacked here.
    """
    if source.is_relative_to(disk):
        return source
    path = f"data-{hashlib.sha256(os.fsencode(source)).hexdigest()[:16]}"
    try:
        make(shared(disk), private=True)
        with only_one(shared(disk).path / f".{path}.lock"):
            record = shared(disk).path / f"{path}.json"
            found = _remembered(record, start) or look(source, path, start)
            used = _provided(source, disk, found)
            write_atomic(record, json.dumps(asdict(used)))
            return _place(source, disk, used)
    except OSError as error:
        return _as_it_is(source, error)


def look(source: Path, path: str, start: str) -> Found:
    """Names, sizes and times of all files of the source."""
    digest, size, files = hashlib.sha256(), 0, 0
    for name, state in sorted(_listing(source), key=lambda found: found[0]):
        digest.update(f"{name!r} {state.st_size} {state.st_mtime_ns}\n".encode())
        size += state.st_size
        files += 1
    return Found(start, f"{path}-{digest.hexdigest()[:16]}", size, files)


def copy(source: Path, into: Path) -> None:
    """Copy the source, or unpack it, into an empty folder, with progress.

    Raises:
        OSError, tarfile.TarError: it can't be read, the disk is full, or what was written is not what was read.
    """
    with telling(f"{socket.gethostname()}: copying {source} to its own disk") as advance:
        if source.is_dir():
            _copy_files(source, into / FOLDER, advance)
        elif is_archive(source):
            _unpack(source, into / FOLDER, advance)
        else:
            (into / FOLDER).mkdir()
            advance(_copy_file(source, into / FOLDER / source.name))


def _provided(source: Path, disk: Path, found: Found) -> Found:
    """Make the copy, if it is not there. Where it can't be made, that is what the other processes of this start find."""
    if found.name is None:
        return found
    try:
        fill = partial(copy, source)
        provide(disk, found.name, fill, found.size, found.files, hold=True)
        return found
    except (OSError, tarfile.TarError) as error:
        _as_it_is(source, error)
        return replace(found, name=None)


def _as_it_is(source: Path, error: Exception) -> Path:
    """The source, after a sentence that says why; DataError for one that can only be read unpacked."""
    why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else error
    node = socket.gethostname()
    if is_archive(source):
        raise DataError(
            f"{node}: {source} can't be unpacked here ({why}); unpack it yourself, and use data.dir=FOLDER."
        )
    say_once(f"{node}: {source} is read where it is, and not from the disk of this node ({why}).")
    return source


def _place(source: Path, disk: Path, found: Found) -> Path:
    """The copy of the source itself. Of a tar file with one folder in it, such as set-1/, that folder."""
    if found.name is None:
        return source
    top = shared(disk).path / found.name / FOLDER
    if source.is_dir():
        return top
    if not is_archive(source):
        return top / source.name
    inside = [p for p in top.iterdir() if not p.name.startswith(".")]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else top


def _remembered(record: Path, start: str) -> Found | None:
    """What another process of the same start has found."""
    with suppress(OSError, ValueError, TypeError):
        found = Found(**loads(read_text(record)))
        if found.start == start and isinstance(found.name, str | None):
            return found
    return None


def _start() -> str:
    """Identifies one start of the ranks of a run: on all of its processes on a node, and in the step before them."""
    if started := os.environ.get("TRAIN_STARTED"):  # by the batch script
        return started
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return f"{os.environ.get('MASTER_PORT')} {os.getppid()}"
    return f"{os.getpid()} {time.time_ns()}"


def _listing(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Files below the source, or the source itself; links are followed, and what is no file is left out."""
    if not source.is_dir():
        yield source.name, source.stat()
        return
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(source, followlinks=True):
        here = os.stat(folder)
        if (here.st_dev, here.st_ino) in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        for name in files:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                yield os.path.relpath(path, source), os.stat(path)


def _copy_files(source: Path, target: Path, advance: Progress) -> None:
    names = [name for name, _ in _listing(source)]
    target.mkdir()
    for folder in sorted({os.path.dirname(name) for name in names}):
        (target / folder).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for size in pool.map(lambda name: _copy_file(source / name, target / name), names):
            advance(size)


def _copy_file(source: Path, target: Path) -> int:
    """Copy a file, and compare checksums of what was read and of what the disk gives back. Returns its size."""
    read = 0
    with open(source, "rb") as file, open(target, "wb") as new:
        while piece := file.read(PIECE):
            new.write(piece)
            read = zlib.crc32(piece, read)
    written, size = 0, 0
    with open(target, "rb") as file:
        while piece := file.read(PIECE):
            written = zlib.crc32(piece, written)
            size += len(piece)
    if written != read:
        raise OSError(f"{target} is not what was read from {source}")
    return size


def _unpack(source: Path, target: Path, advance: Progress) -> None:
    """Unpack a tar file as data: nothing outside of the folder, no devices, no permissions of others (PEP 706)."""
    with tarfile.open(source) as tar:
        for member in tar:
            tar.extract(member, target, filter="data")
            advance(member.size)
