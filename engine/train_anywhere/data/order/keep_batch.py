"""Keep a batch in a file, for a person who wants to see what was in it."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.files.atomic import write_atomic


def keep_batch(file: Path, rows: np.ndarray, batch: Any) -> list[int]:
    """Write the arrays of a batch, by their names or places, and the numbers of its `rows`, int64 [b], as .npz.

    Returns:
        The numbers.

    Raises:
        OSError: the disk refuses.
    """
    named = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    content = io.BytesIO()
    np.savez(
        content, allow_pickle=False, rows=rows, **{str(name): np.asarray(array) for name, array in named}
    )
    write_atomic(file, content.getvalue())
    return [int(row) for row in rows]
