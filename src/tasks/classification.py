"""Classification: cross-entropy and accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

from train_anywhere import tasks as base
from train_anywhere.errors import DataError


class Classification(base.Task):
    """Classification of rows with one label each."""

    sums = ("loss", "right", "count")
    metrics = {"loss": "min", "acc": "max"}  # noqa: RUF012
    headline = "acc"
    unit = "images"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the mean cross-entropy, and the accuracy as a fraction."""
        loss, right, count = sums
        return {"loss": loss / count, "acc": right / count}

    def check_rows(self, rows: Any, facts: Mapping[str, Any]) -> None:
        """Raise a DataError unless the labels are class numbers, whole numbers [rows] from 0 to the number of classes - 1."""
        if not isinstance(rows, tuple) or len(rows) != 2:
            raise DataError(f"a row of the data is a {type(rows).__name__}; use a tuple (image, label).")
        images, labels = rows
        classes = facts.get("classes", facts.get("outputs"))
        counts = labels.dtype.kind in "iu" and labels.ndim == 1
        if not counts or labels.min() < 0 or (classes is not None and labels.max() >= classes):
            numbers = labels.dtype.kind in "biuf"
            values = f" from {labels.min()} to {labels.max()}" if numbers else ""
            last = "the number of classes - 1" if classes is None else f"{classes - 1}, for {classes} classes"
            raise DataError(
                f"labels are {labels.dtype} {list(labels.shape)}{values}; use class numbers: whole numbers (int64) [rows] "
                f"from 0 to {last}. One-hot labels: use labels.argmax(-1)."
            )
        if images.dtype.kind not in "biuf" or len(images) != len(labels):
            shape = list(images.shape)
            raise DataError(
                f"images are {images.dtype} {shape} for {len(labels)} labels; use float32 [rows, ...]."
            )
