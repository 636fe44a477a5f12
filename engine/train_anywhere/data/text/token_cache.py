"""Token files are made by one process, found by all others, and checked before they are used.

A folder of them is made under a name of its process and renamed when it is whole, so that another node sharing the disk, where locks may
mean nothing, never finds half of one; whoever comes second takes what is there. Its name is a checksum of all that it depends on.
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

from train_anywhere.data.download import only_one
from train_anywhere.data.text.sources import Sources, unreadable
from train_anywhere.data.text.token_files import Settings, build, checksum, say
from train_anywhere.data.text.vocabulary import MANIFEST
from train_anywhere.errors import DataError
from train_anywhere.files.atomic import move, read_text, write_atomic
from train_anywhere.files.disk_clock import disk_time
from train_anywhere.files.marked import Place
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.files.removal import make_empty, remove

T = TypeVar("T")

FORMAT = 2
"""Of token files: another number makes them again."""

CHECKED = 3600.0
"""Seconds for which a node takes files with the same sizes and times for the ones that it has compared with their checksums."""

SETTLED = 2.0
"""Seconds after which a file that is written to again gets another time, on any file system."""


def token_files(cache: Path, sources: Sources, settings: Settings) -> Path:
    """The folder below `cache` with the token files; they are made if they are not there, or damaged.

    Raises:
        DataError: a text can't be read, there are too few, or the cache can't be written.
    """
    try:
        with ExitStack() as stack:
            with suppress(OSError):  # a cache of someone else's can be used if all is there
                cache.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_one(cache / ".lock"))
            contents = _contents(sources, cache)
            place = _place(cache, contents, sources.key, settings)
            if not _usable(place):
                _publish(place, sources, settings, contents)
            return place.path
    except OSError as error:
        raise DataError(
            f"data.cache: {cache} can't be written ({error.strerror or error}); use data.cache=FOLDER."
        ) from error


def _place(cache: Path, contents: str, text_key: str, settings: Settings) -> Place:
    key = _sha256([FORMAT, contents, text_key, asdict(settings)])[:24]
    name = f"{settings.tokenizer}-{key}"
    return Place(cache, (name,), _marker(name))


def _marker(name: str) -> str:
    return f"tokens {name}"


def _usable(place: Place) -> bool:
    """Whether the token files are there and whole. Damaged ones are removed, and a line says so."""
    if not os.path.lexists(place.path):
        return False
    damage = _damage(place.path)
    if not damage:
        return True
    say(f"{place.path} is damaged ({damage}): it is made again.")
    if not remove(place):
        raise DataError(f"{place.path} is damaged ({damage}) and can't be removed; use data.cache=FOLDER.")
    return False


def _damage(folder: Path) -> str:
    """What is wrong with the files, in words; "" if they are what their manifest says."""
    try:
        files = {str(name): facts for name, facts in loads(read_text(folder / MANIFEST))["files"].items()}
        for name, facts in files.items():
            if (size := (folder / name).stat().st_size) != facts["size"]:
                return f"{name} has {size} bytes instead of {facts['size']}"
        times = {name: [(s := (folder / name).stat()).st_size, s.st_mtime_ns, s.st_ino] for name in files}
        stamp = folder / f".checked-{socket.gethostname()}"
        if _recently(stamp, times):
            return ""
        for name, facts in files.items():
            if checksum(folder / name) != facts["sha256"]:
                return f"{name} differs from its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} or a file that it names can't be read: {error}"
    with suppress(OSError):
        write_atomic(stamp, dumps(times))
    return ""


def _recently(stamp: Path, times: dict[str, list[int]]) -> bool:
    with suppress(OSError, ValueError):
        return disk_time(stamp.parent) - stamp.stat().st_mtime < CHECKED and loads(read_text(stamp)) == times
    return False


def _publish(place: Place, sources: Sources, settings: Settings, contents: str) -> None:
    """Make the files of these `contents`, and give them their name if no other node was first."""
    _remove_left(place.root)
    own = Place(place.root, (f".{place.names[-1]}.{socket.gethostname()}.{os.getpid()}",), place.marker)
    make_empty(own)
    try:
        build(own.path, sources, settings)
        if _contents(sources, place.root) != contents:
            raise DataError(f"{sources} changed while it was read; start again when it is complete.")
        try:
            move(own.path, place.path)
        except OSError:
            if not place.path.is_dir():
                raise  # else another process was first: a folder with something in it is never replaced
    finally:
        if own.path.exists():
            remove(own)


def _remove_left(cache: Path) -> None:
    """Remove what processes of this node left that were killed."""
    for left in cache.glob(f".*.{socket.gethostname()}.*"):
        if left.is_dir() and not _alive(left.name.rpartition(".")[2]):
            remove(Place(cache, (left.name,), _marker(left.name[1:].partition(".")[0])))


def _alive(process: str) -> bool:
    """Whether a process of this node with this number may still be at work."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _contents(sources: Sources, cache: Path) -> str:
    """A checksum of names and contents of all files. They are read only if names, sizes or times differ from those of the last time."""
    if sources.path is None:
        return _sha256(list(sources.documents()))
    top = sources.path if sources.path.is_dir() else sources.path.parent
    files = list(sources.listing())
    stats = [_read(f, Path.stat) for f in files]
    names = [str(f.relative_to(top)) for f in files]
    seen = _sha256([[n, s.st_size, s.st_mtime_ns, s.st_ino] for n, s in zip(names, stats, strict=True)])
    memory = cache / f"contents-{_sha256([str(sources.path), sources.files])[:24]}.json"
    if (known := _remembered(memory)) and known["seen"] == seen:
        return str(known["contents"])
    contents = _sha256([(n, _read(f, checksum)) for n, f in zip(names, files, strict=True)])
    now = disk_time(top)
    if all(now - s.st_mtime > SETTLED for s in stats):
        with suppress(OSError):
            write_atomic(memory, dumps({"seen": seen, "contents": contents}))
    return contents


def _read(file: Path, how: Callable[[Path], T]) -> T:
    """`how(file)`. Raises DataError: what is wrong is a text, not the cache."""
    try:
        return how(file)
    except OSError as error:
        raise unreadable(file, error) from error


def _remembered(memory: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        known = loads(read_text(memory))
        if isinstance(known, dict) and {"seen", "contents"} <= known.keys():
            return known
    return None


def _sha256(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
