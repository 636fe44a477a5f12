"""TensorBoard's event files in the run folder. Each attempt of a run writes new files."""

import time
from collections.abc import Callable
from pathlib import Path

from train_anywhere.files.atomic import make_folder
from train_anywhere.files.copy_files import find_disk_error
from train_anywhere.files.removal import print_once


class EventFiles:
    """The folder of a run's event files. A disk error is printed once, and never raised in the training."""

    pause_s = 30.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._refused_until = 0.0

    def prepare_folder(self) -> Path:
        """Make the folder for a new event file, and return it. Raises OSError."""
        wait_for_new_name(self.folder)
        make_folder(self.folder)
        return self.folder

    def try_write(self, write: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Write to an event file, or retry with a later call if the disk fails.

        `write` uses the open file, or a new one in `prepare_folder()`, and raises its other errors; `reopen` closes the open file.
        """
        if time.monotonic() < self._refused_until:
            return
        try:
            write()
        except Exception as error:  # frameworks wrap a disk error in their own
            reopen()
            if not (trouble := find_disk_error(error)):
                raise
            self._refused_until = time.monotonic() + self.pause_s
            why = trouble.strerror or trouble
            print_once(f"{self.folder} takes no files ({why}); training continues, retrying.")


def wait_for_new_name(folder: Path) -> None:
    """Wait until the name of a new file, with the time in seconds, sorts after all others.

    Within one second the process id would decide the order, and rows of an earlier attempt could follow the event that purges them.
    Names from the future, by another node's clock, are not waited for.
    """
    seconds = (file.name.split(".")[3:4] for file in folder.glob("events.out.tfevents.*"))
    newest = max((int(second) for [second] in seconds if second.isdecimal()), default=0)
    while 0 <= newest + 1 - time.time() <= 1:
        time.sleep(0.02)
