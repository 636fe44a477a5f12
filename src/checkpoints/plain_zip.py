"""Archives of arrays as torch and numpy write them: nothing in them is compressed, so they hold what their size says."""

import zipfile
from pathlib import Path

from src.errors import CheckpointError


def refuse_compressed(file: Path) -> None:
    """Look at the table of contents of a zip file.

    Raises:
        CheckpointError: it is none, or would take more memory than its size says: a few bytes can unpack to terabytes.
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
