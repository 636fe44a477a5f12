"""The types and shapes of a run's batches, with which its model is opened on a machine that lacks the data."""

from ast import literal_eval
from collections.abc import Mapping
from typing import Any

import numpy as np

from train_anywhere.data.array_data import map_leaves
from train_anywhere.data.dataset import Arrays, Splits
from train_anywhere.errors import ConfigError

BATCH, FACTS = "batch", "facts"
"""Entries of run.json, each a Python literal."""

UNKNOWN_SIDE = 32
"""Length of a side that differs between batches."""

LARGEST = 2**13
"""Most characters of a fact that is recorded."""


def describe_data(batch: Any, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the types and shapes of a batch [n, ...], and the facts that are plain values. Empty if the batch has other objects."""
    try:
        rows = repr(map_leaves(batch, _describe))
        literal_eval(rows)
    except (AttributeError, TypeError, ValueError, SyntaxError):
        return {}
    plain = {name: getattr(value, "item", lambda value=value: value)() for name, value in facts.items()}
    return {BATCH: rows, FACTS: repr({name: value for name, value in plain.items() if _is_literal(value)})}


def _describe(value: Any) -> str | None:
    """Return the type and the shape of a row, such as "float32 28 28 1"."""
    if value is None:
        return None
    kind = getattr(value.dtype, "name", str(value.dtype)).removeprefix("torch.")
    _, *sides = value.shape
    return " ".join([kind, *(str(side or UNKNOWN_SIDE) for side in sides)])


def _is_literal(value: Any) -> bool:
    try:
        text = repr(value)
        return len(text) < LARGEST and bool(literal_eval(text) == value)
    except (TypeError, ValueError, SyntaxError):
        return False


class RecordedRows:
    """A `DataSet` of random rows with recorded types and shapes. Whole numbers are 0 and 1."""

    def __init__(self, tree: Any, length: int, why: Exception) -> None:
        self.tree, self.length, self.why = tree, length, why

    def __len__(self) -> int:
        return self.length

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the rows."""
        random = np.random.default_rng(0)

        def rows(text: str | None) -> np.ndarray | None:
            if text is None:
                return None
            kind, *sides = text.split()
            values = random.normal(size=(len(indices), *map(int, sides)))
            real = "float" in kind
            return (values if real else values > 0).astype("float32" if kind == "bfloat16" else kind)

        found: Arrays = map_leaves(self.tree, rows)
        return found

    @property
    def row_of(self) -> Any:
        """Rows of new items can't be made without the data."""
        raise ConfigError(f"the data of the run, which prepares new rows, can't be opened here: {self.why}")


def recorded_splits(info: Mapping[str, Any], batch_size: int, why: Exception) -> Splits:
    """Return random rows as run.json describes them, in place of data that can't be read because of `why`; raise it if it does not."""
    try:
        tree, facts = literal_eval(info[BATCH]), literal_eval(info[FACTS])
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        raise why from None
    rows = RecordedRows(tree, batch_size * 1000, why)
    return Splits(rows, rows, facts=facts)
