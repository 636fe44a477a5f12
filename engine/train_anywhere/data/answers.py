"""What a model returns, in both frameworks: by name, and of an exported model compared with the trained one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from train_anywhere.data.array_data import leaves
from train_anywhere.errors import CheckpointError


def check_answers(format: str, expected: Sequence[Any], written: Any, half: bool = False) -> None:
    """Raise CheckpointError unless an exported model answers as the trained one.

    Args:
        format: the export's format.
        expected: what the trained model returned for the same rows in two calls, arrays [n, ...] in any nesting. If they differ, as those
            of a model that draws random numbers, nothing is compared, and a line is printed.
        written: what the exported model returned for these rows.
        half: the model computes with 16 bits.
    """
    first, second, other = (
        [np.asarray(a, np.float64) for a in map(np.asarray, leaves(tree)) if a.dtype.kind in "biuf"]
        for tree in (*expected, written)
    )
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True)):
        print(f"{format}: not compared with the trained model, whose answers differ from call to call.")
        return
    for a, b in zip(first, other, strict=False):  # a graph may return more, such as caches
        size = float(np.abs(a).max(initial=1e-3))
        off = float(np.abs(a - b).max(initial=0)) if a.shape == b.shape else np.inf
        if not off <= (5e-2 if half else 1e-3) * size and not np.array_equal(a, b, equal_nan=True):
            raise CheckpointError(
                f"--export {format}: the written model answers differently from the trained one, by {off:.2g} for values up to "
                f"{size:.2g}; it was removed. Use another format."
            )


def flatten_arrays(tree: Any, name: str = "predictions") -> dict[str, np.ndarray]:
    """Return the arrays in nested tuples and dicts by name. A single one is "predictions"."""
    if isinstance(tree, Mapping):
        return {k: v for key, value in tree.items() for k, v in flatten_arrays(value, str(key)).items()}
    if isinstance(tree, list | tuple):
        return {k: v for n, value in enumerate(tree) for k, v in flatten_arrays(value, f"{name}_{n}").items()}
    return {name: np.asarray(tree)}
