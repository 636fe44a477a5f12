"""The types and shapes of a run's batches, with which its model is opened on a machine that lacks the data."""

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from train_anywhere.data.array_data import map_leaves
from train_anywhere.data.dataset import Splits
from train_anywhere.errors import ConfigError

BATCH, FACTS = "batch", "facts"
"""Entries of run.json, each a Python literal."""

UNKNOWN_SIDE = 32
"""Length of a side that differs between batches."""

LARGEST = 2**13
"""Most characters of a fact that is recorded."""


def describe_data(batch: Any, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the types and shapes of a batch [n, ...], and the facts that are plain values. Empty if the batch has other objects."""

    def describe(value: Any) -> str | None:
        if value is None:
            return None
        kind = getattr(value.dtype, "name", str(value.dtype)).removeprefix("torch.")
        return " ".join([kind, *(str(side or UNKNOWN_SIDE) for side in value.shape[1:])])

    try:
        rows = repr(map_leaves(batch, describe))
        literal_eval(rows)
    except (AttributeError, TypeError, ValueError, SyntaxError):
        return {}
    plain = {name: getattr(value, "item", lambda value=value: value)() for name, value in facts.items()}
    return {BATCH: rows, FACTS: repr({name: value for name, value in plain.items() if _is_literal(value)})}


def _is_literal(value: Any) -> bool:
    try:
        text = repr(value)
        return len(text) < LARGEST and bool(literal_eval(text) == value)
    except (TypeError, ValueError, SyntaxError):
        return False


@dataclass(frozen=True)
class RecordedRows:
    """A `DataSet` of `length` random rows with recorded types and shapes. Whole numbers are 0 and 1.

    `why` is the reason for which the data itself can't be read.
    """

    tree: Any
    length: int
    why: Exception

    def __len__(self) -> int:
        return self.length

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        """Return the rows."""
        random = np.random.default_rng(0)

        def rows(text: str | None) -> np.ndarray | None:
            if text is None:
                return None
            kind, *sides = text.split()
            values = random.normal(size=(len(indices), *map(int, sides)))
            return (values if "float" in kind else values > 0).astype(kind.replace("bfloat16", "float32"))

        return map_leaves(self.tree, rows)

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
