"""Let a task look at the first rows of the training data before it trains."""

from typing import Any

import numpy as np

from train_anywhere.data.dataset import DataSet, Splits

FIRST_ROWS = 64
"""The most rows that a task looks at."""


def check_first_rows(task: Any, splits: Splits) -> None:
    """Call `check_rows` of a task that has one. Raises DataError if the rows do not suit the task."""
    data, check = splits.train, getattr(task, "check_rows", None)
    if check is None or not isinstance(data, DataSet) or not len(data):
        return
    check(data.read(np.arange(min(FIRST_ROWS, len(data))), 0, False), splits.facts)
