"""What is learned: image classification, the loss of a batch and the metrics that are reported.

In order: the model turns a batch of images into logits; `classification.cross_entropy` of the framework gives a loss per row;
`classification.sums` counts the batch, without padding, as the numbers named in `SUMS`; the training loop adds them up
over batches on the device, and over ranks in one reduction every `trainer.log_every_n_steps` steps; `metrics` turns the totals into named
metrics, which go to metrics.csv, TensorBoard, the display and `checkpoint.monitor`.

A new metric: one more sum in `SUMS` and in both `sums`, one more line in `metrics`, its name in `METRIC_NAMES`, and in `METRICS` of
`src/config/checks.py` if it may be monitored.
"""

from collections.abc import Sequence

SUMS = ("loss", "right", "count")
"""Sums over the samples of a batch: their losses, 1 for each right answer, 1 for each sample."""

PARTS = ("train", "val", "test")
METRIC_NAMES = tuple(f"{part}/{name}" for part in PARTS for name in ("loss", "acc"))
"""The metrics of a run, in the order in which they are written."""


def metrics(part: str, sums: Sequence[float]) -> dict[str, float]:
    """Mean loss and accuracy of a part, one of `PARTS`; none where no sample was counted.

    Args:
        sums: by `SUMS`, over all ranks.
    """
    loss, right, count = sums
    return {f"{part}/loss": loss / count, f"{part}/acc": right / count} if count else {}


def names(*parts: str) -> list[str]:
    """The names of the metrics of some parts."""
    return [name for name in METRIC_NAMES if name.split("/")[0] in parts]
