"""A cache of token files: one process writes them, all others find them, and each checks them before use.

A folder of token files is written under a temporary name and renamed when complete, so that another node never finds half of one, even if
locks do not work on the shared disk. The second process uses the folder of the first. The name contains a checksum of all inputs.
"""

import hashlib
import json
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from train_anywhere.data.download import wait_for_lock
from train_anywhere.data.text.sources import Sources, unreadable_error
from train_anywhere.data.text.token_files import Settings, build, checksum, log
from train_anywhere.data.text.vocabulary import MANIFEST
from train_anywhere.errors import DataError
from train_anywhere.files.atomic import move, read_text, write_atomic
from train_anywhere.files.disk_clock import disk_time
from train_anywhere.files.owned_folder import OwnedFolder
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.files.removal import make_empty, remove

T = TypeVar("T")

FORMAT = 2
"""Version of the token files' format; with another number they are written again."""

CHECKED = 3600.0
"""Seconds for which a node trusts files that it compared with their checksums, if sizes and times are unchanged."""

SETTLED = 2.0
"""Age in seconds from which a file's time shows any later change, on any file system."""


def provide_token_files(cache: Path, sources: Sources, settings: Settings) -> Path:
    """Return the folder below `cache` with the token files, which are written if missing or damaged.

    Raises:
        DataError: a document can't be read, there are too few, or the cache can't be written.
    """
    try:
        with ExitStack() as stack:
            with suppress(OSError):  # a read-only cache of another user works if it has the token files
                cache.mkdir(parents=True, exist_ok=True)
                stack.enter_context(wait_for_lock(cache / ".lock"))
            contents = _contents(sources, cache)
            place = _place(cache, contents, sources.key, settings)
            if not _is_usable(place):
                _publish(place, sources, settings, contents)
            return place.path
    except OSError as error:
        raise DataError(
            f"data.cache: {cache} can't be written ({error.strerror or error}); use data.cache=FOLDER."
        ) from error


def _place(cache: Path, contents: str, text_key: str, settings: Settings) -> OwnedFolder:
    key = _sha256([FORMAT, contents, text_key, asdict(settings)])[:24]
    name = f"{settings.tokenizer}-{key}"
    return OwnedFolder(cache, (name,), _marker(name))


def _marker(name: str) -> str:
    return f"tokens {name}"


def _is_usable(place: OwnedFolder) -> bool:
    """Return whether the token files exist and are complete; log and remove damaged ones."""
    if not os.path.lexists(place.path):
        return False
    damage = _damage(place.path)
    if not damage:
        return True
    log(f"{place.path} is damaged ({damage}) and is written again.")
    if not remove(place):
        raise DataError(f"{place.path} is damaged ({damage}) and can't be removed; use data.cache=FOLDER.")
    return False


def _damage(folder: Path) -> str:
    """Return what is wrong with the files; "" if they agree with their manifest."""
    try:
        files = {str(name): facts for name, facts in loads(read_text(folder / MANIFEST))["files"].items()}
        for name, facts in files.items():
            if (size := (folder / name).stat().st_size) != facts["size"]:
                return f"{name} has {size} bytes instead of {facts['size']}"
        times = {name: [(s := (folder / name).stat()).st_size, s.st_mtime_ns, s.st_ino] for name in files}
        stamp = folder / f".checked-{socket.gethostname()}"
        if _was_checked(stamp, times):
            return ""
        for name, facts in files.items():
            if checksum(folder / name) != facts["sha256"]:
                return f"{name} differs from its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} or a file that it names can't be read: {error}"
    with suppress(OSError):
        write_atomic(stamp, dumps(times))
    return ""


def _was_checked(stamp: Path, times: dict[str, list[int]]) -> bool:
    with suppress(OSError, ValueError):
        return disk_time(stamp.parent) - stamp.stat().st_mtime < CHECKED and loads(read_text(stamp)) == times
    return False


def _publish(place: OwnedFolder, sources: Sources, settings: Settings, contents: str) -> None:
    """Write the token files and move them into place, unless another node was first; `contents` is the sources' checksum."""
    _remove_abandoned(place.root)
    own = OwnedFolder(place.root, (f".{place.names[-1]}.{socket.gethostname()}.{os.getpid()}",), place.marker)
    make_empty(own)
    try:
        build(own.path, sources, settings)
        if _contents(sources, place.root) != contents:
            raise DataError(f"{sources} changed while it was read; start again when it is complete.")
        try:
            move(own.path, place.path)
        except OSError:
            if not place.path.is_dir():
                raise  # else another process was first: rename never replaces a folder that is not empty
    finally:
        if own.path.exists():
            remove(own)


def _remove_abandoned(cache: Path) -> None:
    """Remove the temporary folders of killed processes of this node."""
    for folder in cache.glob(f".*.{socket.gethostname()}.*"):
        if folder.is_dir() and not _is_alive(folder.name.rpartition(".")[2]):
            remove(OwnedFolder(cache, (folder.name,), _marker(folder.name[1:].partition(".")[0])))


def _is_alive(process: str) -> bool:
    """Return whether a process of this node with this number may still run."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _contents(sources: Sources, cache: Path) -> str:
    """Return a checksum of names and contents of all files; read them only if names, sizes or times have changed."""
    if sources.path is None:
        return _sha256(list(sources.read_documents()))
    top = sources.path if sources.path.is_dir() else sources.path.parent
    files = list(sources.list_files())
    stats = [_read(f, Path.stat) for f in files]
    names = [str(f.relative_to(top)) for f in files]
    seen = _sha256([[n, s.st_size, s.st_mtime_ns, s.st_ino] for n, s in zip(names, stats, strict=True)])
    memory = cache / f"contents-{_sha256([str(sources.path), sources.files])[:24]}.json"
    if (known := _read_memory(memory)) and known["seen"] == seen:
        return str(known["contents"])
    contents = _sha256([(n, _read(f, checksum)) for n, f in zip(names, files, strict=True)])
    now = disk_time(top)
    if all(now - s.st_mtime > SETTLED for s in stats):
        with suppress(OSError):
            write_atomic(memory, dumps({"seen": seen, "contents": contents}))
    return contents


def _read(file: Path, function: Callable[[Path], T]) -> T:
    """Return `function(file)`. Raises DataError, so that the error is not reported as one of the cache."""
    try:
        return function(file)
    except OSError as error:
        raise unreadable_error(file, error) from error


def _read_memory(memory: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        known = loads(read_text(memory))
        if isinstance(known, dict) and {"seen", "contents"} <= known.keys():
            return known
    return None


def _sha256(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
