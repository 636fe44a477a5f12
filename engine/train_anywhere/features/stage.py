"""`data.stage=true`: copy the files of a data set to each node's disk, and read them there.

<local disk>/shared-<user id>/data-<path>-<state>/data    the copy; path: hash of the source's path, state: of names, sizes and times
                              data-<path>.json            the copy that the processes of one start of the ranks use

The first process of a node scans and copies the source; the others wait and use its result without a scan. A tar file is unpacked. If
the copy fails, the node prints why and reads the source. See `files/node_disk.py` for when copies are removed.
"""

import hashlib
import json
import os
import shutil
import socket
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from train_anywhere.config.paths import expand, resolve_node_path
from train_anywhere.errors import DataError
from train_anywhere.features.feature import Feature
from train_anywhere.files.atomic import read_json, write_atomic
from train_anywhere.files.node_disk import Staged, hold_lock, is_archive, provide, shared_folder
from train_anywhere.files.removal import make_owned, print_once
from train_anywhere.files.terminal.output import show_progress

THREADS = 8
"""Number of files copied at the same time: a shared disk answers single calls slowly, but many in parallel."""

FOLDER = "data"


class Stage(Feature):
    """Read the data set from a copy on the node's own disk."""

    def is_on(self) -> bool:
        """Return whether `data.stage=true`."""
        return self.config.data.stage

    @contextmanager
    def supervise(self, job: Any) -> Iterator[None]:
        """Copy the data set to each node before the ranks start to wait for each other."""
        job.run_on_each_node(job.in_container("-m", "train_anywhere.training.prepare", str(job.run.path)))
        yield

    def stager(self) -> Staged:
        """Return a function that maps a path of the data set to its copy. Raises DataError."""
        folder = os.environ.get("TRAIN_LOCAL_DISK") or self.config.cluster.local_disk
        try:
            disk = Path(os.path.abspath(resolve_node_path(expand(folder))))
        except ValueError as error:
            raise DataError(f"cluster.local_disk={folder} {error}.") from error
        return partial(stage, disk=disk, start=_start_id())


def stage(source: Path, disk: Path, start: str) -> Path:
    """Return where to read `source`, its copy if possible. Raises DataError for a tar file."""
    if source.is_relative_to(disk):
        return source
    path = f"data-{hashlib.sha256(os.fsencode(source)).hexdigest()[:16]}"
    top = shared_folder(disk)
    try:
        make_owned(top, private=True)
        with hold_lock(top.path / f".{path}.lock"):
            record = top.path / f"{path}.json"
            known = _read_record(record, start) or {"start": start, **scan(source, path)}
            if known["name"]:
                try:
                    provide(disk, known["name"], partial(copy, source), known["size"], known["files"])
                except (OSError, tarfile.TarError) as error:
                    _use_source(source, error)
                    known["name"] = None
            write_atomic(record, json.dumps(known))
            return _staged_path(source, top.path / known["name"] / FOLDER) if known["name"] else source
    except OSError as error:
        return _use_source(source, error)


def scan(source: Path, path: str) -> dict[str, Any]:
    """Return the name of the folder of a copy, which has a hash of names, sizes and times, with size and number of its files."""
    digest, size, files = hashlib.sha256(), 0, 0
    for name, state in sorted(_list_files(source), key=lambda file: file[0]):
        digest.update(f"{name!r} {state.st_size} {state.st_mtime_ns}\n".encode())
        size += state.st_size
        files += 1
    return {"name": f"{path}-{digest.hexdigest()[:16]}", "size": size, "files": files}


def copy(source: Path, into: Path) -> None:
    """Copy or unpack the source into an empty folder. Raises OSError, tarfile.TarError."""
    with show_progress(f"{socket.gethostname()}: copying {source} to its own disk") as advance:
        if is_archive(source):
            with tarfile.open(source) as tar:  # the filter `data` (PEP 706): nothing outside, no devices
                for member in tar:
                    tar.extract(member, into / FOLDER, filter="data")
                    advance(member.size)
            return
        top, names = source if source.is_dir() else source.parent, [name for name, _ in _list_files(source)]
        for folder in sorted({os.path.dirname(name) for name in names} | {""}):
            (into / FOLDER / folder).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(THREADS) as pool:
            for copied in pool.map(lambda name: shutil.copyfile(top / name, into / FOLDER / name), names):
                advance(copied.stat().st_size)


def _use_source(source: Path, error: Exception) -> Path:
    """Print why the source is not copied, and return it. Raises DataError for a tar file."""
    why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else error
    node = socket.gethostname()
    if is_archive(source):
        raise DataError(
            f"{node}: {source} can't be unpacked here ({why}); unpack it yourself, and use data.dir=FOLDER."
        )
    print_once(f"{node}: {source} is not copied to the disk of this node, and is read where it is ({why}).")
    return source


def _staged_path(source: Path, top: Path) -> Path:
    """Return the path of the copy below `top`. For a tar file with a single folder, that folder."""
    if source.is_dir():
        return top
    if not is_archive(source):
        return top / source.name
    inside = [p for p in top.iterdir() if not p.name.startswith(".")]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else top


def _read_record(record: Path, start: str) -> dict[str, Any]:
    """Return what another process of the same start has found. Empty if none has; a `name` of None: the source itself is read."""
    known = read_json(record)
    kinds = {"start": str, "name": str | None, "size": int, "files": int}
    is_known = known.get("start") == start and all(
        isinstance(known.get(k), kind) for k, kind in kinds.items()
    )
    return known if is_known else {}


def _start_id() -> str:
    """Return an id of this start of a run's ranks, equal for all its processes on a node."""
    if started := os.environ.get("TRAIN_STARTED"):  # set by the batch script
        return started
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return f"{os.environ.get('MASTER_PORT')} {os.getppid()}"
    return f"{os.getpid()} {time.time_ns()}"


def _list_files(source: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all ordinary files below the source, or the source itself. Links are followed."""
    if not source.is_dir():
        yield source.name, source.stat()
        return
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(source, followlinks=True):
        place = os.stat(folder)
        if (place.st_dev, place.st_ino) in seen:  # a link to a folder that was listed
            folders.clear()
            continue
        seen.add((place.st_dev, place.st_ino))
        for name in files:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                yield os.path.relpath(path, source), os.stat(path)
