"""Archives of data sets, which are unpacked where they are staged."""

from pathlib import Path

TAR = (".tar", ".tar.gz", ".tgz")
"""Endings of their names."""


def is_archive(path: Path) -> bool:
    """Whether a path is an archive, by its name."""
    return path.name.endswith(TAR) and path.is_file()
