"""Archives of data sets, which are unpacked when they are staged on a node."""

from pathlib import Path

TAR = (".tar", ".tar.gz", ".tgz")
"""File name endings of archives."""


def is_archive(path: Path) -> bool:
    """Return whether a path is a file with the name of an archive."""
    return path.name.endswith(TAR) and path.is_file()
