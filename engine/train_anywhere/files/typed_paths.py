"""Paths that keep the links the user typed: a link of this machine may be a mounted folder on a node."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.errors import ProjectError


def resolve_as_typed(path: str | os.PathLike[str]) -> Path:
    """Resolve a path, but keep the links above it that the user typed or that the shell shows ($PWD).

    A link at the end of the path is followed: results/latest later points to another run.
    """
    return restore_links(Path(os.path.realpath(path)), path)


def restore_links(path: Path, typed: str | os.PathLike[str] = "") -> Path:
    """Return an absolute path with the link that the user typed, or that the shell shows, put back; the path itself if there is none."""
    for link in _links(typed):
        target = os.path.realpath(link)
        if target not in (str(link), str(path)) and path.is_relative_to(target):
            return link / path.relative_to(target)
    return path


def shell_folder() -> Path:
    """Return the current folder as the shell shows it; / if it was deleted."""
    shown, here = os.environ.get("PWD", ""), "/"
    with suppress(OSError):
        here = os.getcwd()
        here = shown if os.path.isabs(shown) and os.path.samefile(shown, here) else here
    return Path(here)


def refuse_deleted_folder() -> None:
    """Raise ProjectError if the current folder was deleted: relative paths would have no meaning."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ProjectError("the current folder was deleted: cd to one that exists.") from error


def _links(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the folders above a path, the current folder and this program, each group topmost first."""
    here = shell_folder()
    for named in (here / path, here / "*", here / sys.argv[0]):
        yield from (folder for folder in reversed(named.parents) if {"..", "latest"}.isdisjoint(folder.parts))
