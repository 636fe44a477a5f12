"""Write a folder once for all processes, such as tokens or resized pictures made from other files."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil

from train_anywhere.data.download import wait_for_lock
from train_anywhere.errors import DataError
from train_anywhere.files.atomic import move
from train_anywhere.files.removal import OwnedFolder, new_folder, remove


def prepare_folder(folder: Path, write: Callable[[Path], None], use: str = "") -> Path:
    """Return `folder`; if it does not exist, one process calls `write` with an empty folder next to it and renames that.

    So no process sees a half-written folder, even on a shared disk without locks. An existing folder is never changed: its name must
    contain a checksum of all that it is made from. What a killed process left is removed by the next one on the same node.
    `use` is the end of the message if the folder can't be written, such as "; use data.index=FOLDER".
    Raises DataError: the folder can't be written; or any error of `write`, which leaves nothing behind.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(folder.parent / ".lock"):
            if not folder.is_dir():
                _remove_abandoned(folder.parent)
                _write(folder, write)
    except OSError as error:
        raise DataError(f"{folder.parent} can't be written ({error.strerror or error}){use}.") from error
    return folder


def _write(folder: Path, write: Callable[[Path], None]) -> None:
    own = _owned(folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}"))
    with new_folder(own) as temporary:
        write(temporary)
        try:
            move(temporary, folder)
        except OSError:
            if not folder.is_dir():
                raise
            remove(own)  # another node was first: a folder that is not empty is never replaced


def _owned(path: Path) -> OwnedFolder:
    return OwnedFolder(path.parent, (path.name,), f"prepared {path.name}")


def _remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders of killed processes of this node."""
    alive = {*map(str, psutil.pids())}
    for path in parent.glob(f".*.{socket.gethostname()}.*"):
        if path.is_dir() and path.suffix[1:] not in alive:
            remove(_owned(path))
