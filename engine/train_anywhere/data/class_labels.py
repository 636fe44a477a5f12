"""Check the labels of a classification before it trains."""

import numpy as np

from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.errors import DataError

ROWS = 64
"""The most rows that are looked at."""


def check_labels(splits: Splits) -> None:
    """Raise a DataError unless labels are from 0 to the number of classes - 1, if the facts have `classes`."""
    data, classes = splits.train, splits.facts.get("classes")
    if classes is None or not isinstance(data, DataSet) or not len(data):
        return
    rows = data.read(np.arange(min(ROWS, len(data))), 0, False)
    if not isinstance(rows, tuple) or len(rows) != 2:
        raise DataError(f"a row of the data is a {type(rows).__name__}; use a tuple (image, label).")
    images, labels = rows
    counts = labels.dtype.kind in "iu" and labels.ndim == 1
    if not counts or labels.min() < 0 or labels.max() >= classes:
        values = f" from {labels.min()} to {labels.max()}" if labels.dtype.kind in "biuf" else ""
        raise DataError(
            f"labels are {labels.dtype} {list(labels.shape)}{values}; use class numbers: whole numbers (int64) [rows] "
            f"from 0 to {classes - 1}, for {classes} classes. One-hot labels: use labels.argmax(-1)."
        )
    if images.dtype.kind not in "biuf" or len(images) != len(labels):
        raise DataError(
            f"images are {images.dtype} {list(images.shape)} for {len(labels)} labels; use float32 [rows, ...]."
        )
