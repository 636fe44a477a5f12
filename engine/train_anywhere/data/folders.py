"""Data folders that one process fills while others wait: downloads with checksums, and files made from others."""

import hashlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import psutil

from train_anywhere.errors import DataError, listed
from train_anywhere.files.atomic import move, replace
from train_anywhere.files.node_disk import hold_lock
from train_anywhere.files.removal import OwnedFolder, new_folder, remove, remove_file, temporary_name
from train_anywhere.files.terminal.output import show_progress

TIMEOUT = 10
"""Seconds to wait for a connection, and for each read."""

CHUNK = 2**16
"""Bytes per read."""


def fetch(
    folder: Path, checksums: Mapping[str, str], missing: Callable[[], list[str]], mirrors: tuple[str, ...]
) -> None:
    """Download the files that `missing()` lists into `folder`, each from the first of `mirrors` that has it complete.

    `checksums` maps file names to MD5 sums. Raises DataError if no mirror has one of the files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # without locks several processes may download: wasted work, but files are renamed only when complete
        lock = partial(hold_lock, folder / ".download.lock", shared_disk=True)
        with lock(wait=False) as is_first, nullcontext() if is_first else lock():
            names = missing()
            if names and not is_first:
                # after a failed attempt of another rank, this one would only wait for the same time-outs again
                raise DataError("another process of this run could not download the data, see its message.")
            for name in names:
                _fetch_one(folder / name, checksums[name], mirrors)
    except OSError as error:
        raise DataError(f"{folder} can't be written ({error.strerror}).") from error


def _fetch_one(target: Path, checksum: str, mirrors: tuple[str, ...]) -> None:
    failures = []
    part = temporary_name(target)
    for mirror in mirrors:
        try:
            digest, url = hashlib.md5(usedforsecurity=False), mirror + target.name
            with (
                urlopen(url, timeout=TIMEOUT) as answer,
                part.open("wb") as file,
                show_progress(f"fetching {url}", int(answer.headers.get("Content-Length") or 0)) as advance,
            ):
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    advance(len(chunk))
            if (found := digest.hexdigest()) == checksum:
                replace(part, target)
                return
            size = part.stat().st_size
            problem = f"sent a wrong or truncated file ({size} bytes, MD5 {found} instead of {checksum})"
        except (OSError, HTTPException, ValueError) as error:
            problem = f"failed ({error})"
        finally:
            remove_file(part)
        failures.append(f"{mirror} {problem}")
        print(f"{target.name}: {failures[-1]}", file=sys.stderr)
    raise DataError(f"{target.name}: {listed(failures)}.")


def prepare_folder(folder: Path, write: Callable[[Path], None], use: str = "") -> Path:
    """Return `folder`; if it does not exist, one process calls `write` with an empty folder next to it and renames that.

    So no process sees a half-written folder, even on a shared disk without locks. An existing folder is never changed: its name must
    contain a checksum of all that it is made from. What a killed process left is removed by the next one on the same node.
    `use` is the end of the message if the folder can't be written, such as "; use data.index=FOLDER".
    Raises DataError: the folder can't be written; or any error of `write`, which leaves nothing behind.
    """
    if folder.is_dir():
        return folder
    host = socket.gethostname()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder.parent / ".lock", shared_disk=True):
            if not folder.is_dir():
                alive = {*map(str, psutil.pids())}
                for path in folder.parent.glob(f".*.{host}.*"):
                    if path.is_dir() and path.suffix[1:] not in alive:
                        remove(_owned(path))
                own = _owned(folder.with_name(f".{folder.name}.{host}.{os.getpid()}"))
                with new_folder(own) as temporary:
                    write(temporary)
                    try:
                        move(temporary, folder)
                    except OSError:
                        if not folder.is_dir():
                            raise
                        remove(own)  # another node was first: a folder that is not empty is never replaced
    except OSError as error:
        raise DataError(f"{folder.parent} can't be written ({error.strerror or error}){use}.") from error
    return folder


def _owned(path: Path) -> OwnedFolder:
    return OwnedFolder(path.parent, (path.name,), f"prepared {path.name}")
