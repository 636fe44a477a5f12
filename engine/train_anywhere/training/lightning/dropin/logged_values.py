"""Reduce the values of `self.log` over all ranks."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from train_anywhere.errors import ConfigError

HASHES = 4
"""Number of hashes of the logged names that ranks compare; each is below 2**20, so that sums of squares are exact."""


def reduce_logged(results: Any, strategy: Strategy, on_step: bool, known: set[str]) -> set[str]:
    """Replace this rank's logged values by those over all ranks. All ranks must call this at the same place.

    A mean is taken over all rows, weighted by the batch sizes. Values logged with `rank_zero_only=True` stay as they are, and so
    do values that are reduced elsewhere: torchmetrics, and `sync_dist=True`.

    Lightning's `results` are those of the current loop. With `on_step`, the values of the last step are reduced, else those of the
    epoch, except for keys in `known`. Returns the keys that are reduced now.

    Raises:
        ConfigError: the ranks have logged different names. Continuing would hang or give wrong metrics.
    """
    items = {
        key: metric
        for key, metric in results.valid_items()
        if key not in known and not metric.meta.sync.rank_zero_only and _is_logged(metric, on_step)
    }
    _refuse_different_names(items, strategy)
    own = [m for m in items.values() if m.is_tensor and not m.meta.sync.should]
    if own and on_step:
        _reduce_steps(own, strategy)
    elif own:
        _reduce_epochs(own, strategy)
    return set() if on_step else set(items)


def _is_logged(metric: Any, on_step: bool) -> bool:
    return bool(metric.meta.on_step if on_step else metric.meta.on_epoch)


def _refuse_different_names(names: Iterable[str], strategy: Strategy) -> None:
    """Raise ConfigError unless all ranks have logged the same names, compared by sums of a fixed size."""
    listed = list(names)
    digest = hashlib.sha256("\n".join(listed).encode()).digest()
    own = [int.from_bytes(digest[4 * n : 4 * n + 4]) % 2**20 for n in range(HASHES)]
    numbers = torch.tensor([[n, n * n] for n in own], dtype=torch.float64, device=strategy.root_device)
    summed = strategy.reduce(numbers, reduce_op="sum").tolist()
    ranks = getattr(strategy, "world_size", 1)
    if any(ranks * squares != total * total for total, squares in summed):
        named = ", ".join(dict.fromkeys(name.partition(".")[2] for name in listed)) or "nothing"
        raise ConfigError(
            f"the ranks logged different metrics (rank {strategy.global_rank}: {named}); call self.log on all ranks, or use "  # type: ignore[attr-defined]
            "rank_zero_only=True."
        )


def _reduce_steps(metrics: list[Any], strategy: Strategy) -> None:
    values = _reduce_values([(m._forward_cache, _reduction(m)) for m in metrics], strategy)
    ranks = getattr(strategy, "world_size", 1)
    for metric, value in zip(metrics, values, strict=True):
        metric._forward_cache = value / ranks if metric.meta.is_mean_reduction else value
        if not metric.meta.on_epoch:
            metric.value = metric._forward_cache


def _reduce_epochs(metrics: list[Any], strategy: Strategy) -> None:
    values = _reduce_values([(m.value, _reduction(m)) for m in metrics], strategy)
    means = [m for m in metrics if m.meta.is_mean_reduction]
    sizes = _reduce_values([(m.cumulated_batch_size, "sum") for m in means], strategy) if means else []
    for metric, value in zip(metrics, values, strict=True):
        metric.value, metric._computed = value, None
    for metric, size in zip(means, sizes, strict=True):
        metric.cumulated_batch_size = size


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
