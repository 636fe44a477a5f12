"""Let a task look at the first rows of the training data before it trains."""

import numpy as np

from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.tasks import Task

FIRST_ROWS = 64
"""The most rows that a task looks at."""


def check_first_rows(task: Task, splits: Splits) -> None:
    """Call `check_rows` of a task that has one. Raises DataError if the rows do not suit the task."""
    data = splits.train
    if type(task).check_rows is Task.check_rows or not isinstance(data, DataSet) or not len(data):
        return
    task.check_rows(data.read(np.arange(min(FIRST_ROWS, len(data))), 0, False), splits.facts)
