"""Loaders of the user: read their settings, and resume a stream of their batches at any position."""

import traceback
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from train_anywhere.data.dataset import DataSet
from train_anywhere.errors import iterate_causes


def is_map_style(split: object) -> bool:
    """Return whether rows can be read by index."""
    by_index = hasattr(split, "__getitem__") and hasattr(split, "__len__")
    return by_index and not isinstance(split, IterableDataset | dict)


def is_source(value: object, named: bool = False) -> bool:
    """Return whether a value in a list, or `named` in a dict, is a data set or a loader itself, and not a row."""
    if isinstance(value, Dataset | DataSet) or hasattr(value, "__getitems__"):
        return True
    if isinstance(value, dict | list | tuple | str) or hasattr(value, "__array__"):
        return False
    return named if is_map_style(value) else hasattr(value, "__iter__")


def yields_batches(stream: IterableDataset[Any]) -> bool:
    """Return whether a stream yields batches, not rows, because it reads from a DataLoader like webdataset's WebLoader."""
    inner = [v for value in vars(stream).values() for v in (value if isinstance(value, list) else [value])]
    return any(isinstance(value, DataLoader) for value in inner)


def is_sharded(loader: Any, ranks: int) -> bool:
    """Return whether the loader reads a different part on each of `ranks` ranks."""
    inner = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    found = [loader, *inner, getattr(inner[1], "sampler", None)]
    return any(getattr(s, "num_replicas", None) == ranks and hasattr(s, "set_epoch") for s in found)


def raised_by_row(end: StopIteration) -> bool:
    """Return whether a row or a collate function raised StopIteration, here or in a worker: it is an error, not the data's end."""
    # Lightning catches it and raises another one
    ends = [error for error in iterate_causes(end) if isinstance(error, StopIteration)]
    names = {frame.f_code.co_qualname for one in ends for frame, _ in traceback.walk_tb(one.__traceback__)}
    readers = {"_MapDatasetFetcher.fetch", "ExceptionWrapper.reraise"}
    return bool(names & readers) or any(n.endswith(("__getitem__", "__getitems__")) for n in names)
