"""Reduce the values of `self.log` over all ranks."""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.loop.private import _ResultCollection

HASHES = 4
"""Number of hashes of the logged names that ranks compare; each is below 2**20, so that sums of squares are exact."""


class Results(_ResultCollection):
    """Lightning's logged values on one of several ranks, with `sync_dist=True` as a mean over the rows of all ranks.

    Lightning takes the mean over the ranks, and a mean of the integer numbers of rows: both are wrong if the ranks have different
    numbers of rows. Values of an epoch are reduced by `reduce_logged`, unless a hook reads them earlier.
    """

    def __init__(self, training: bool) -> None:
        super().__init__(training)
        self._over_ranks: Any = None
        self._rows: int | Tensor = 1

    def log(self, *arguments: Any, sync_dist_fn: Any, **named: Any) -> None:
        """Log a value; `sync_dist_fn` reduces over the ranks."""
        self._over_ranks = sync_dist_fn
        super().log(*arguments, sync_dist_fn=self._sync, **named)

    def update_metrics(self, key: str, value: Any, batch_size: int) -> None:
        """Add a value, and keep the number of its rows for the mean of this step."""
        self[key].rows = self._rows = batch_size
        super().update_metrics(key, value, batch_size)
        self._rows = 1

    def _extract_batch_size(self, value: Any, batch_size: int | None, meta: Any) -> int:
        known: int | None = self.batch_size  # type: ignore[has-type]
        unknown = batch_size is known is None and self.batch is not None
        if unknown and value.is_tensor and meta.on_step and meta.is_mean_reduction:
            with suppress(MisconfigurationException):
                self.batch_size = extract_batch_size(self.batch)
        return super()._extract_batch_size(value, batch_size, meta)

    def _sync(self, value: Tensor, reduce_op: str, group: Any) -> Tensor:
        if reduce_op != "mean":
            return self._over_ranks(value, reduce_op=reduce_op, group=group)  # type: ignore[no-any-return]
        rows = torch.as_tensor(self._rows, dtype=torch.float64, device=value.device)
        total, count = self._over_ranks(torch.stack([value * rows, rows]), reduce_op="sum", group=group)
        return (total / count).to(value.dtype if value.is_floating_point() else torch.float64)


def reduce_logged(
    results: Any, strategy: Strategy, on_step: bool, known: set[str], monitors: Iterable[str] = ()
) -> set[str]:
    """Replace this rank's logged values by those over all ranks. All ranks must call this at the same place.

    A mean is taken over all rows, weighted by the batch sizes. Values logged with `rank_zero_only=True` stay as they are, and so
    do values that are reduced elsewhere: torchmetrics, and those of a process group or of a step with `sync_dist=True`.

    Lightning's `results` are those of the current loop. With `on_step`, the values of the last step are reduced, else those of the
    epoch, except for keys in `known`. Returns the keys that are reduced now.

    Raises:
        ConfigError: the ranks have logged different names, or one of `monitors` only on rank 0. Continuing would hang or give wrong
            metrics.
    """
    logged = {
        k: m
        for k, m in results.valid_items()
        if k not in known and bool(m.meta.on_step if on_step else m.meta.on_epoch)
    }
    items = {key: metric for key, metric in logged.items() if not metric.meta.sync.rank_zero_only}
    refused = {metric.meta.name for key, metric in logged.items() if key not in items} & {*monitors}
    _refuse_different_names(items, refused, strategy)
    here = [m for m in items.values() if m.is_tensor]
    if on_step:
        steps = [m for m in here if not m.meta.sync.should]
        for metric, value in zip(steps, _reduce_metrics(steps, on_step, strategy), strict=True):
            metric._forward_cache = value
            if not metric.meta.on_epoch:
                metric.value = value
        return set()
    epochs = [m for m in here if not (m.meta.sync.should and m.meta.sync.group)]
    for metric, value in zip(epochs, _reduce_metrics(epochs, on_step, strategy), strict=True):
        metric._computed = value  # until the next update; this rank's own sum stays as it is
    return set(items)


def _refuse_different_names(names: Iterable[str], refused: set[str], strategy: Strategy) -> None:
    """Raise ConfigError unless all ranks have logged the same names, compared by sums of a fixed size, and none of `refused`."""
    listed = list(names)
    digest = hashlib.sha256("\n".join(listed).encode()).digest()
    own = [int.from_bytes(digest[4 * n : 4 * n + 4]) % 2**20 for n in range(HASHES)]
    rows = [*([n, n * n] for n in own), [len(refused), 0]]
    numbers = torch.tensor(rows, dtype=torch.float64, device=strategy.root_device)
    *summed, (alone, _) = strategy.reduce(numbers, reduce_op="sum").tolist()
    ranks = getattr(strategy, "world_size", 1)
    if alone:
        raise ConfigError(
            "the monitored metric is logged with rank_zero_only=True, and all ranks must know it; log it on all ranks with "
            "sync_dist=True."
        )
    if any(ranks * squares != total * total for total, squares in summed):
        named = ", ".join(dict.fromkeys(name.partition(".")[2] for name in listed)) or "nothing"
        raise ConfigError(
            f"the ranks logged different metrics (rank {strategy.global_rank}: {named}); call self.log on all ranks, or use "  # type: ignore[attr-defined]
            "rank_zero_only=True."
        )


def _reduce_metrics(metrics: list[Any], on_step: bool, strategy: Strategy) -> list[Tensor]:
    """Return the values of the last step or of the epoch over all ranks; a mean is weighted by the rows."""
    parts: list[tuple[Tensor, str]] = []
    for metric in metrics:
        value, mean = (
            (metric._forward_cache if on_step else metric.value).double(),
            metric.meta.is_mean_reduction,
        )
        rows = torch.as_tensor((metric.rows if on_step else metric.cumulated_batch_size) if mean else 1.0)
        parts += [(value * rows if on_step and mean else value, _reduction(metric)), (rows.double(), "sum")]
    reduced = iter(_reduce_values(parts, strategy))
    return [
        (total / rows if metric.meta.is_mean_reduction else total).to(metric.value)
        for metric, total, rows in zip(metrics, reduced, reduced, strict=True)
    ]


def _reduction(metric: Any) -> str:
    """Return the reduction of a metric over ranks; a mean is reduced by its sum."""
    if metric.meta.is_max_reduction:
        return "max"
    return "min" if metric.meta.is_min_reduction else "sum"


def _reduce_values(values: list[tuple[Tensor, str]], strategy: Strategy) -> list[Tensor]:
    """Return each value reduced over the ranks, with one exchange for each kind of reduction."""
    out: list[Any] = [None] * len(values)
    for kind in ("sum", "min", "max"):
        places = [n for n, (_, reduction) in enumerate(values) if reduction == kind]
        if not places:
            continue
        together = torch.stack([values[n][0].detach().double().to(strategy.root_device) for n in places])
        reduced = strategy.reduce(together, reduce_op=kind)
        for n, value in zip(places, reduced, strict=True):
            out[n] = value.to(values[n][0])
    return out
