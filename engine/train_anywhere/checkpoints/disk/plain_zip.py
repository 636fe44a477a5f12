"""Archives of arrays as frameworks and numpy write them: not compressed, so they unpack to no more than their own size."""

import zipfile
from pathlib import Path

from train_anywhere.errors import CheckpointError


def refuse_compressed(file: Path) -> None:
    """Check the table of contents of a zip file.

    Raises:
        CheckpointError: it is not a zip file, or unpacks to more than its size: a few bytes can unpack to terabytes.
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
