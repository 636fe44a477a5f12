"""The loaders of a user's module, continued at any batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.user_loader import raised_by_row, samplers
from train_anywhere.errors import DataError


def agree_on_end(fetcher: Any, strategy: Any) -> None:
    """End an epoch on all ranks when the loader of one of them ends: the others would wait for its next step.

    Raises:
        DataError: when a batch is read, on all ranks: a rank has no batch at all.
    """
    kind: Any = type(fetcher)

    def read(fetcher: Any) -> Any:
        batch = None
        try:
            batch = kind.__next__(fetcher)
        except StopIteration as end:
            if raised_by_row(end):
                raise
            fetcher.done = True
        over = batch is None
        own = torch.tensor([fetcher.done, over, over and not fetcher.fetched], device=strategy.root_device)
        last, ended, empty = strategy.reduce(own.int(), reduce_op="sum").tolist()
        if empty:
            raise DataError(
                f"the training loader has no batch on {empty} of {strategy.world_size} ranks; give each rank rows of its own."
            )
        if ended:
            raise StopIteration
        fetcher.done = last > 0
        return batch

    fetcher.__class__ = type(kind.__name__, (kind,), {"__next__": read})


def capture_random(combined: CombinedLoader) -> list[Any]:
    """Return the random states that decide what a new iterator returns, as plain values."""
    return [
        random_states.pack(random_states.get_states()),
        [g.get_state() for g in _generators(combined)],
    ]


def restore_random(combined: CombinedLoader, captured: list[Any]) -> None:
    """Set the random states of `capture_random`."""
    random_states.restore(random_states.unpack(captured[0]))
    for generator, state in zip(_generators(combined), captured[1], strict=False):
        generator.set_state(state)


def _generators(combined: CombinedLoader) -> list[torch.Generator]:
    owners = [owner for loader in combined.flattened for owner in samplers(loader)]
    found = [value for owner in owners for value in getattr(owner, "__dict__", {}).values()]
    unique = {id(value): value for value in found if isinstance(value, torch.Generator)}
    return [*unique.values()]


def loader_states(combined: CombinedLoader, fetcher: Any) -> list[Any]:
    """Return the states of loaders that save their own position. Empty unless all do.

    Lightning reads one batch ahead of a loader without a length, and its state is then not that of the trained batches.
    """
    states = all(hasattr(one, "state_dict") and hasattr(one, "load_state_dict") for one in combined.flattened)
    return [one.state_dict() for one in combined.flattened] if states and fetcher.length is not None else []


def skip_batches(fetcher: Any, batches: int) -> None:
    """Advance by batches that are trained already, if possible without reading rows."""
    with _without_reading(fetcher):
        for _ in range(batches):
            next(fetcher, None)
    fetcher.fetched -= batches  # the loop adds them


@contextmanager
def _without_reading(fetcher: Any) -> Iterator[None]:
    inner = getattr(fetcher.combined_loader._iterator, "iterators", [])
    # without a length a batch is read ahead; rows of one loader may draw numbers before another one draws its order
    inner = inner if fetcher.length is not None and len(inner) == 1 else []
    found = [
        (one, one._dataset_fetcher)
        for one in inner
        if type(one) is _SingleProcessDataLoaderIter and one._dataset_kind == _DatasetKind.Map
    ]
    for one, _ in found:
        one._dataset_fetcher = _NoRows()
    try:
        yield
    finally:
        for one, reader in found:
            one._dataset_fetcher = reader


class _NoRows:
    def fetch(self, indices: Any) -> None:
        """Read nothing."""
