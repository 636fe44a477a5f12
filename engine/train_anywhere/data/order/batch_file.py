"""Save a batch in a file, for the user to inspect."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.files.atomic import write_atomic


def save_batch(file: Path, rows: np.ndarray, batch: Any) -> list[int]:
    """Write the arrays of a batch, under their names or positions, and its row numbers `rows` (int64 [b]) as .npz.

    Returns:
        The row numbers.

    Raises:
        OSError: the disk failed.
    """
    named = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    content = io.BytesIO()
    arrays = {str(name): np.asarray(array) for name, array in named}
    np.savez(content, allow_pickle=False, rows=rows, **arrays)
    write_atomic(file, content.getvalue())
    return [int(row) for row in rows]
