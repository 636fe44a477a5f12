"""Folders that all jobs of a user share on a node's disk, filled by one process each.

<local disk>/shared-<user id>/<name>/         complete, or absent; the name identifies the content
                              .<name>/        being filled, or left by a killed process: the next process removes it
                              .<name>.lock    held while the folder is filled or removed

                              <name>/users    locked by each process that reads the folder, until it exits

A power cut may leave files of a complete folder empty, so a folder from before the last boot is filled again. Before a new folder is
filled, folders that no job requested within `KEEP_DAYS` days are removed, and if space is short, those that no process reads any more.
Only this user may enter the folders, and jobs never use a folder of another user.

The folders of one run are next to them, see `checkpoints/store.py`:

<local disk>/<name>-<user id>/<run id>        its checkpoints
                              <run id>.rank-3 files of rank 3
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from train_anywhere.files.atomic import move
from train_anywhere.files.removal import MARKER, OwnedFolder, make_owned, new_folder, remove, remove_in
from train_anywhere.files.terminal.output import format_bytes

KEEP_DAYS = 30
"""Days after the last request until a folder is removed; longer than any job may run."""

BOOT, USERS = "boot", "users"
"""Files of a complete folder: the `boot_id()` under which it was filled, and one that each reader locks in shared mode, so that a process
which locks it exclusively may remove the folder."""

TAR = (".tar", ".tar.gz", ".tgz")
"""File name endings of archives."""

Staged = Callable[[Path], Path]
"""A function that returns where to read a file or folder: the copy on this node's disk with data.stage=true, else the path itself."""

_users_locks: list[int] = []
"""Descriptors of the `USERS` files that this process locks until it exits."""


def provide(local_disk: Path, name: str, fill: Callable[[Path], None], size: int, files: int) -> Path:
    """Return the shared folder `name`, which stays as long as this process and its children live.

    `fill` writes `size` bytes in `files` files into an empty folder; if it raises, nothing is left. Raises NotOwnedError: a folder of
    another user is in the way. Raises OSError: the disk failed, or has too little space, and nothing was written.
    """
    top = shared_folder(local_disk)
    make_owned(top, private=True)
    place, unfinished = _place(local_disk, name), _place(local_disk, name, ".")
    with hold_lock(top.path / f".{name}.lock"):
        if _is_usable(place):
            os.utime(place.path / MARKER)
        else:
            remove(unfinished)
            remove(place, hidden=f".{name}")
            _make_space(local_disk, size, files)
            with new_folder(unfinished, private=True) as folder:
                fill(folder)
                (folder / BOOT).write_text(boot_id())
                move(folder, place.path)
        _users_locks.append(os.open(place.path / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        fcntl.flock(_users_locks[-1], fcntl.LOCK_SH)
    return place.path


def as_it_is(path: Path) -> Path:
    """Return the path itself: the `Staged` function that copies nothing."""
    return path


def is_archive(path: Path) -> bool:
    """Return whether a path is a file with the name of an archive, which is unpacked when it is staged on a node."""
    return path.name.endswith(TAR) and path.is_file()


def find_run_folder(run: Path, location: str | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of a run on this node's disk, which may not exist yet, or None: write to the run folder.

    `location` is `checkpoint.local`: null for none, a folder, or auto. Auto means the scheduler's folder for the job or the node's
    disk, unless the run folder is on the same disk. TRAIN_LOCAL_DISK is cluster.local_disk.
    """
    if location is None:
        return None
    places = [environ.get(name) for name in ("TRAIN_LOCAL_DISK", "SLURM_TMPDIR", "TMPDIR")]
    roots = [*places, "/tmp"] if location == "auto" else [location]
    for root in (Path(os.path.abspath(os.path.expandvars(r))) for r in roots if r):
        if location != "auto" or (os.access(root, os.W_OK) and root.stat().st_dev != run.stat().st_dev):
            return root.joinpath(*run_folder_names(run))
    return None


def run_folder_names(run: Path) -> tuple[str, str]:
    """Return the names of the two nested folders below a local disk for a run folder and this user."""
    return f"{run.parent.name}-{os.getuid()}", run.name


def rank_folder(folder: Path, rank: int) -> OwnedFolder:
    """Return the folder of one rank's files, next to the `folder` of its run."""
    names = (folder.parent.name, f"{folder.name}.rank-{rank}")
    return OwnedFolder(folder.parents[1], names, f"part of rank {rank} of run {folder.name}")


def list_rank_folders(folder: Path) -> list[OwnedFolder]:
    """Return the folders of `rank_folder` that exist on this node."""
    found = folder.parent.glob(f"*{folder.name}.rank-*")  # hidden ones too, left by a killed removal
    ranks = {path.name.rpartition("-")[2].removesuffix(".removed") for path in found}
    return [rank_folder(folder, int(rank)) for rank in ranks if rank.isdecimal()]


def shared_folder(local_disk: Path) -> OwnedFolder:
    """Return this user's folder on the disk of this node."""
    name = f"shared-{os.getuid()}"
    return OwnedFolder(local_disk, (name,), f"folder {name} of jobs")


def find_lack(disk: Path, size: int, files: int) -> str:
    """Return why `size` bytes in `files` files do not fit on the disk, or ""."""
    status = os.statvfs(disk)
    needed = size + files * 4096  # the most by which disks round up the size of a file
    free = status.f_bavail * status.f_frsize
    if free < needed:
        return f"{disk} has {format_bytes(free)} free, and {format_bytes(needed)} are needed"
    if status.f_files and status.f_favail < files:
        return f"{disk} has space for {status.f_favail:,} files, and {files:,} are needed"
    return ""


def boot_id() -> str:
    """Return an identifier of this machine's current boot, or the host name."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


@contextmanager
def hold_lock(lock: Path, wait: bool = True, shared_disk: bool = False) -> Iterator[bool]:
    """Hold a lock file until the block ends or this process dies. Yield False if another holds it and `wait` is false.

    Raises OSError, but on a shared disk without locks all processes enter the block at once.
    """
    while True:
        with lock.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:
                if not shared_disk:
                    raise
            if os.fstat(handle.fileno()).st_nlink:  # else the lock file was removed while this process waited
                yield True
                return


def _place(local_disk: Path, name: str, before: str = "") -> OwnedFolder:
    return OwnedFolder(local_disk, (*shared_folder(local_disk).names, before + name), f"shared {name}")


def _is_usable(place: OwnedFolder) -> bool:
    """Return whether the folder exists and was filled since the last boot."""
    with suppress(OSError):
        return (place.path / BOOT).read_text() == boot_id()
    return False


def _is_unused(place: OwnedFolder) -> bool:
    """Return whether processes held the folder and none does now."""
    with suppress(OSError), open(place.path / USERS) as users:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _make_space(local_disk: Path, size: int, files: int) -> None:
    """Remove unfinished and unneeded folders, but none that a process is filling. Raises OSError."""
    top = shared_folder(local_disk)
    places = {_place(local_disk, p.name.removeprefix(".")) for p in top.path.iterdir() if p.is_dir()}
    for place in sorted(places, key=_is_recent):  # old ones first
        name = place.path.name
        with hold_lock(top.path / f".{name}.lock", wait=False) as is_held:
            if is_held and remove(_place(local_disk, name, ".")):
                unneeded = not _is_recent(place) or (find_lack(local_disk, size, files) and _is_unused(place))
                if unneeded and remove(place, hidden=f".{name}"):
                    remove_in(top, f".{name}.lock")
    if lack := find_lack(local_disk, size, files):
        raise OSError(lack)


def _is_recent(place: OwnedFolder) -> bool:
    with suppress(OSError):
        return _is_usable(place) and time.time() - (place.path / MARKER).stat().st_mtime < KEEP_DAYS * 86400
    return False
