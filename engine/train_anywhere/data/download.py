"""Download files with checksums from the first mirror that has them; one process downloads, the others wait."""

import fcntl
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from train_anywhere.errors import DataError, listed
from train_anywhere.files.atomic import replace
from train_anywhere.files.removal import remove_file, temporary_name
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
        with wait_for_lock(folder / ".download.lock") as had_to_wait:
            names = missing()
            if names and had_to_wait:
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
            if (digest := _transfer(mirror + target.name, part)) == checksum:
                replace(part, target)
                return
            size = part.stat().st_size
            problem = f"sent a wrong or truncated file ({size} bytes, MD5 {digest} instead of {checksum})"
        except (OSError, HTTPException, ValueError) as error:
            problem = f"failed ({error})"
        finally:
            remove_file(part)
        failures.append(f"{mirror} {problem}")
        print(f"{target.name}: {failures[-1]}", file=sys.stderr)
    raise DataError(f"{target.name}: {listed(failures)}.")


def _transfer(url: str, part: Path) -> str:
    """Download `url` to the file `part`, with progress; return its MD5 sum."""
    digest = hashlib.md5(usedforsecurity=False)
    with (
        urlopen(url, timeout=TIMEOUT) as answer,
        part.open("wb") as file,
        show_progress(f"fetching {url}", int(answer.headers.get("Content-Length") or 0)) as advance,
    ):
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


@contextmanager
def wait_for_lock(lock: Path) -> Iterator[bool]:
    """Hold an exclusive `lock`, released when the process dies; yield whether this process had to wait for another.

    On a file system without locks several processes may download: wasted work, but files are renamed only when complete.
    """
    with lock.open("w") as handle:
        had_to_wait = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            had_to_wait = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield had_to_wait
