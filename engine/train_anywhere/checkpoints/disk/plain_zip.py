"""Check of zip files with arrays: frameworks and numpy write them uncompressed, so they must not unpack to more than their size."""

import zipfile
from pathlib import Path

from train_anywhere.errors import CheckpointError


def refuse_compressed(file: Path) -> None:
    """Check the table of contents of a zip file: a few bytes could unpack to terabytes.

    Raises:
        CheckpointError: it is not a zip file, or unpacks to more than its size.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{file} can't be read: {error}.") from error
    if unpacked > file.stat().st_size:
        raise CheckpointError(
            f"{file} unpacks to {unpacked} bytes, and neither framework compresses its checkpoints: it is not read."
        )
