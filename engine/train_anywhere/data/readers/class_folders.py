"""The classes of a split of imagefolder: its sub-folders. Listing them opens no picture, so the check before a run uses it too."""

import os
from pathlib import Path

from train_anywhere.data import is_hidden
from train_anywhere.errors import DataError


def class_folders(folder: Path) -> list[str]:
    """Return the sorted names of the class folders; raise DataError if there are none or they can't be listed."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))
    except OSError as error:
        raise DataError(
            f"{folder.absolute()} can't be listed ({error.strerror}): data.dir must have train/<class>/ and "
            "val/<class>/ with pictures in them."
        ) from error
    if not names:
        raise DataError(
            f"{folder.absolute()} has no class folders: put pictures into {folder.name}/<class>/."
        )
    return names
