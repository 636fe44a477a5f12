"""Paths with the links that the user sees: where this machine has a link, a node may have mounted a folder."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def as_typed(path: str | os.PathLike[str]) -> Path:
    """Return where a path leads, without following the links above it that were typed or that the shell shows ($PWD).

    A link at the end of the path is followed: results/latest leads to another run later.
    """
    return with_links(Path(os.path.realpath(path)), path)


def with_links(path: Path, typed: str | os.PathLike[str] = "") -> Path:
    """Return an absolute path below the link through which it was typed, or the shell shows it; the path itself if there is none."""
    for link in _links(typed):
        leads = os.path.realpath(link)
        if leads not in (str(link), str(path)) and path.is_relative_to(leads):
            return link / path.relative_to(leads)
    return path


def shell_folder() -> Path:
    """Return the present folder as the shell shows it; / if it was deleted."""
    shown, here = os.environ.get("PWD", ""), "/"
    with suppress(OSError):
        here = os.getcwd()
        here = shown if os.path.isabs(shown) and os.path.samefile(shown, here) else here
    return Path(here)


def _links(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the folders above a path, above the present folder, and above this program, topmost first."""
    here = shell_folder()
    for named in (here / path, here / "*", here / sys.argv[0]):
        yield from (folder for folder in reversed(named.parents) if {"..", "latest"}.isdisjoint(folder.parts))
