"""What `self.log` was given on each rank, turned into the value over all ranks."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from train_anywhere.errors import ConfigError

PARTS = 4
"""Numbers that stand for the names that a rank has logged; each is below 2**20, so that sums of them are exact."""


def share(results: Any, strategy: Strategy, on_step: bool, known: set[str]) -> set[str]:
    """Replace this rank's values by those over all ranks; all ranks call it at the same place.

    A mean is the one over all rows, weighted by the sizes of the batches. What is logged with `rank_zero_only=True` stays as it is, and so
    does what is shared by other means: torchmetrics, and `sync_dist=True`.

    Args:
        results: Lightning's metrics of the present loop.
        on_step: the values of the last step, else those of the epoch.
        known: keys that are shared already.

    Returns:
        The keys of what is shared now.

    Raises:
        ConfigError: the ranks have logged different names. It would be silently wrong, or wait for ever, to go on.
    """
    items = {
        key: metric
        for key, metric in results.valid_items()
        if key not in known and not metric.meta.sync.rank_zero_only and _asked(metric, on_step)
    }
    _refuse_different_names(items, strategy)
    own = [m for m in items.values() if m.is_tensor and not m.meta.sync.should]
    if own and on_step:
        _share_steps(own, strategy)
    elif own:
        _share_epochs(own, strategy)
    return set() if on_step else set(items)


def _asked(metric: Any, on_step: bool) -> bool:
    return bool(metric.meta.on_step if on_step else metric.meta.on_epoch)


def _refuse_different_names(names: Iterable[str], strategy: Strategy) -> None:
    """By sums that have the same size whatever was logged."""
    listed = list(names)
    digest = hashlib.sha256("\n".join(listed).encode()).digest()
    own = [int.from_bytes(digest[4 * n : 4 * n + 4]) % 2**20 for n in range(PARTS)]
    numbers = torch.tensor([[n, n * n] for n in own], dtype=torch.float64, device=strategy.root_device)
    summed = strategy.reduce(numbers, reduce_op="sum").tolist()
    ranks = getattr(strategy, "world_size", 1)
    if any(ranks * squares != total * total for total, squares in summed):
        named = ", ".join(dict.fromkeys(name.partition(".")[2] for name in listed)) or "nothing"
        raise ConfigError(
            f"the ranks have logged different metrics (rank {strategy.global_rank}: {named}); call self.log on all ranks, or with "  # type: ignore[attr-defined]
            "rank_zero_only=True."
        )


def _share_steps(metrics: list[Any], strategy: Strategy) -> None:
    values = _over_ranks([(m._forward_cache, _how(m)) for m in metrics], strategy)
    ranks = getattr(strategy, "world_size", 1)
    for metric, value in zip(metrics, values, strict=True):
        metric._forward_cache = value / ranks if metric.meta.is_mean_reduction else value
        if not metric.meta.on_epoch:
            metric.value = metric._forward_cache


def _share_epochs(metrics: list[Any], strategy: Strategy) -> None:
    values = _over_ranks([(m.value, _how(m)) for m in metrics], strategy)
    means = [m for m in metrics if m.meta.is_mean_reduction]
    sizes = _over_ranks([(m.cumulated_batch_size, "sum") for m in means], strategy) if means else []
    for metric, value in zip(metrics, values, strict=True):
        metric.value, metric._computed = value, None
    for metric, size in zip(means, sizes, strict=True):
        metric.cumulated_batch_size = size


def _how(metric: Any) -> str:
    """The reduction over ranks; that of a mean is the one of its sum."""
    if metric.meta.is_max_reduction:
        return "max"
    return "min" if metric.meta.is_min_reduction else "sum"


def _over_ranks(values: list[tuple[Tensor, str]], strategy: Strategy) -> list[Tensor]:
    """Each value reduced over the ranks, those of the same kind in one exchange."""
    out: list[Any] = [None] * len(values)
    for kind in ("sum", "min", "max"):
        places = [n for n, (_, how) in enumerate(values) if how == kind]
        if not places:
            continue
        together = torch.stack([values[n][0].detach().double().to(strategy.root_device) for n in places])
        reduced = strategy.reduce(together, reduce_op=kind)
        for n, value in zip(places, reduced, strict=True):
            out[n] = value.to(values[n][0])
    return out
