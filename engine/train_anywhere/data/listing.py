"""List everything below a data folder in a fixed order, and describe what is skipped. Needs only the standard library."""

import os
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

from train_anywhere.errors import DataError

Kind = Literal["file", "hidden", "dead links", "pipes or devices"]


def is_hidden(name: str) -> bool:
    """Return whether a name is not data: `.DS_Store`, `._photo.jpg` and the `__MACOSX` that macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def walk(folder: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[str, Kind]]:
    """Yield the path and kind of everything below a folder, sorted by name in each folder; links are followed.

    `above` holds the device and inode numbers of the folders that contain `folder`.
    Raises DataError: a folder can't be listed, or a link leads back to a folder that contains it.
    """
    try:
        status = os.stat(folder)
        with os.scandir(folder) as found:
            entries = sorted(found, key=attrgetter("name"))
    except OSError as error:
        denied = isinstance(error, PermissionError)
        use = "allow it (chmod u+rx), or delete it" if denied else "use the path of a folder"
        raise DataError(f"data.dir: {folder} can't be listed ({error.strerror}); {use}.") from error
    own = (status.st_dev, status.st_ino)
    if own in above:
        raise DataError(
            f"data.dir: {folder} is a link to a folder that contains it, a loop; remove the link."
        )
    for entry in entries:
        link = entry.is_symlink()  # `entry.is_dir()` raises for some links
        if is_hidden(entry.name):
            yield entry.path, "hidden"
        elif os.path.isdir(entry.path) if link else entry.is_dir():
            yield from walk(entry.path, (*above, own))
        elif os.path.isfile(entry.path) if link else entry.is_file():
            yield entry.path, "file"
        else:
            yield entry.path, "pipes or devices" if os.path.exists(entry.path) else "dead links"


def left_out(path: str, kind: Kind) -> str:
    """Return the name under which `describe` counts a skipped path: its kind, or for a file its extension."""
    return kind if kind != "file" else f"*{os.path.splitext(path)[1]}"


def describe(counts: Counter[str]) -> str:
    """Return the end of a log line, such as `; left out: *.gz (3), hidden (2)`; empty if nothing is left out."""
    shown = [f"{name} ({count})" for name, count in counts.most_common(8)]
    more = ["..."] if len(counts) > 8 else []
    return f"; left out: {', '.join(shown + more)}" if counts else ""
