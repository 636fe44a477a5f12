"""What all jobs of a user share on a node's own disk, such as an unpacked environment: one process makes it, the others find it.

<local disk>/shared-<user id>/<name>/         complete, or absent; the name says what is in it
                              .<name>/        being made, or left by a process that was killed: the next one removes it
                              .<name>.lock    held while it is made or removed

                              <name>/users    locked by each process that reads the folder, see `hold` of `provide`

A power cut may leave files of a complete folder empty, so one from before the last boot is made again. When something else is
made, what no job has asked for within `KEPT` days is removed, and, where room is lacking, what processes were to hold and none
does. All is for this user alone, and jobs take nothing from a folder of another's.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from train_anywhere.files.atomic import move
from train_anywhere.files.marked import MARKER, Place, make
from train_anywhere.files.removal import make_empty, remove, remove_in
from train_anywhere.files.terminal.byte_progress import in_words

KEPT = 30
"""Days without a job that asked for it after which a folder is removed; longer than any job may run."""

BOOT = "boot"
"""File of a complete folder: `boot()` when it was made."""

USERS = "users"
"""File of a complete folder that every process locks which reads there, in shared mode: who gets it alone may remove the folder."""

_held: list[int] = []
"""Locked files of this process, until it ends."""

ROUNDED = 4096
"""Bytes by which disks round up the size of a file, at most."""


class NoRoom(OSError):
    """A disk has too little room; the message is a clause that says how much is needed and how much is there."""


def provide(
    local_disk: Path, name: str, fill: Callable[[Path], None], size: int, files: int, hold: bool = False
) -> tuple[Path, bool]:
    """The folder `name` that `fill` fills, unless a process before has done it; others that ask at the same time wait.

    Args:
        fill: writes into an empty folder; what it raises ends the call, and nothing is left.
        size, files: bytes and number of what it will write.
        hold: the folder must stay as long as this process and its children live, and may go afterwards where room is lacking.

    Returns:
        The folder, and whether it was made by this call.

    Raises:
        NoRoom: before anything is written.
        NotOurs, OSError: the disk refuses, or the folder of another user is in the way.
    """
    top = shared(local_disk)
    make(top, private=True)
    place, begun = _place(local_disk, name), _place(local_disk, name, ".")
    with only_one(top.path / f".{name}.lock"):
        if found := _usable(place):
            os.utime(place.path / MARKER)
        else:
            for left in (place, begun):
                remove(left)
            _remove_unused(local_disk)
            _make_room(local_disk, size, files)
            refuse_without_room(local_disk, size, files)
            _make(place, begun, fill)
        if hold:
            _held.append(os.open(place.path / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fcntl.flock(_held[-1], fcntl.LOCK_SH)
    return place.path, not found


def shared(local_disk: Path) -> Place:
    """This user's folder on the disk of this node."""
    name = f"shared-{os.getuid()}"
    return Place(local_disk, (name,), f"folder {name} of jobs")


def refuse_without_room(disk: Path, size: int, files: int) -> None:
    """Raise NoRoom unless so many bytes in so many files fit onto the disk."""
    there = os.statvfs(disk)
    needed, free = size + files * ROUNDED, there.f_bavail * there.f_frsize
    if free < needed:
        raise NoRoom(f"{disk} has {in_words(free)} free, and {in_words(needed)} are needed")
    if there.f_files and there.f_favail < files:
        raise NoRoom(f"{disk} has room for {there.f_favail:,} files, and {files:,} are needed")


def boot() -> str:
    """Identifies this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


@contextmanager
def only_one(lock: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file of this node's disk, which may be removed by its holder; yields False where it is held and `wait` is false."""
    while True:
        with lock.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            if os.fstat(handle.fileno()).st_nlink:  # else it was removed while this process waited
                yield True
                return


def _make(place: Place, begun: Place, fill: Callable[[Path], None]) -> None:
    make_empty(begun, private=True)
    try:
        fill(begun.path)
        (begun.path / BOOT).write_text(boot())
        move(begun.path, place.path)
    except BaseException:
        remove(begun)
        raise


def _place(local_disk: Path, name: str, before: str = "") -> Place:
    return Place(local_disk, (*shared(local_disk).names, before + name), f"shared {name}")


def _usable(place: Place) -> bool:
    """Whether the folder is there, and was made since the last boot."""
    with suppress(OSError):
        return (place.path / BOOT).read_text() == boot()
    return False


def _remove_unused(local_disk: Path) -> None:
    """Remove what no job has asked for in a long time, what is older than the last boot, and what killed processes have left."""
    _remove_if(local_disk, lambda place: not _used_lately(place))


def _make_room(local_disk: Path, size: int, files: int) -> None:
    """As long as room is lacking, remove what processes held and none holds any more."""

    def needless(place: Place) -> bool:
        try:
            refuse_without_room(local_disk, size, files)
            return False
        except NoRoom:
            return _free(place)

    _remove_if(local_disk, needless)


def _free(place: Place) -> bool:
    """Whether processes held the folder, and none does now."""
    try:
        with open(place.path / USERS) as users:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def _remove_if(local_disk: Path, needless: Callable[[Place], bool]) -> None:
    """Remove folders, and what killed processes have left; those that a process is making stay."""
    top = shared(local_disk)
    for name in {p.name.removeprefix(".") for p in top.path.iterdir() if p.is_dir()}:
        lock = top.path / f".{name}.lock"
        with only_one(lock, wait=False) as held:
            if not held:
                continue
            gone = remove(_place(local_disk, name, "."))
            if needless(_place(local_disk, name)) and remove(_place(local_disk, name)) and gone:
                remove_in(top, lock.name)


def _used_lately(place: Place) -> bool:
    try:
        return _usable(place) and time.time() - (place.path / MARKER).stat().st_mtime < KEPT * 86400
    except OSError:
        return False
