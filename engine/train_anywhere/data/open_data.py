"""Open the data set that the `data` section of the configuration names."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from train_anywhere.config.choices import Data
from train_anywhere.config.instantiate import instantiate, locate
from train_anywhere.data.array_data import array_rows, is_array, leaves
from train_anywhere.data.dataset import Splits
from train_anywhere.errors import ConfigError
from train_anywhere.files.node_disk import Staged, as_it_is

SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)}
"""The splits, each with its accepted names in the object that a target returns."""


def open_splits(
    config: Data, framework: str, seed: int = 0, staged: Staged = as_it_is, **supplied: Any
) -> Splits:
    """Open the data set that `config` names.

    Its target may have parameters for the run's `seed`, `staged` and others of `supplied`. It may return `Splits`, a mapping, a tuple or
    list of train, val and test, or any object with attributes of these names; val and test may be missing. A single data set or loader
    is used for training. A split may be arrays as in `fit(x, y)`. Any other object, such as a data module, becomes all three splits.

    Raises:
        ConfigError: the target can't be called, or returns no training data.
        DataError: files are missing or do not fit together. A damaged row raises it later, when it is read.
    """
    target = locate(config.target[framework], "data._target_")
    if config.own_split and "split" not in inspect.signature(target).parameters:
        config = replace(config, arguments={k: v for k, v in config.arguments.items() if k != "split"})
    opened = instantiate(config, "data", framework, seed=seed, staged=staged, **supplied)
    facts = (opened.facts if isinstance(opened, Splits) else _get(opened, "facts")) or {}
    parts = _find_splits(opened)
    if parts is None:
        return Splits(opened, opened, opened, facts)
    if parts["train"] is None:
        raise ConfigError(
            f"data._target_={config.target[framework]} returns no train; return a mapping, an object or a tuple of train and, if "
            "available, val and test."
        )
    notes = opened.notes if isinstance(opened, Splits) else ()
    return Splits(**{name: _make_readable(part) for name, part in parts.items()}, facts=facts, notes=notes)


@dataclass(frozen=True)
class FunctionIterable:
    """An iterable that calls a function, such as a generator function, anew for each pass."""

    make: Any

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


def _make_readable(split: Any) -> Any:
    """Wrap arrays, to read them by index, and functions, to iterate over them; return any other split unchanged."""
    if isinstance(split, FunctionType | MethodType | partial):
        return FunctionIterable(split)
    rows = array_rows(split)
    return split if rows is None else rows


def _find_splits(opened: Any) -> dict[str, Any] | None:
    """Return train, val and test; None for an object that has none of them and is neither a data set nor a loader."""
    # a LightningDataModule, even if an attribute has the name of a split
    if hasattr(opened, "train_dataloader"):
        return None
    found = {name: _first(opened, names) for name, names in SPLIT_NAMES.items()}
    series = isinstance(opened, tuple | list)
    named = isinstance(opened, Mapping) or hasattr(opened, "val") or (series and found["train"] is not None)
    if series and not named and not _is_one_data_set(opened):
        return dict(zip(SPLIT_NAMES, (*opened, None, None)[:3], strict=True))
    rows = hasattr(opened, "__len__") and (hasattr(opened, "__getitem__") or hasattr(opened, "read"))
    if not named and (rows or hasattr(opened, "__iter__")):
        return {"train": opened, "val": None, "test": None}
    if named and found["train"] is None and array_rows(opened):
        return {"train": opened, "val": None, "test": None}
    # the method `train` of a network is not a split
    method = callable(found["train"]) and not hasattr(found["train"], "__len__")
    return found if named or not (method or found["train"] is None) else None


def _is_one_data_set(opened: tuple[Any, ...] | list[Any]) -> bool:
    """Return whether a tuple or list is one data set: `(x, y)`, or more than three rows."""
    if not 0 < len(opened) <= len(SPLIT_NAMES):
        return True
    bare, found = [one for one in opened if is_array(one)], leaves(opened)
    alike = len(bare) == len(opened) and len({tuple(one.shape[1:]) for one in bare}) == 1
    return bool(bare) and not alike and all(map(is_array, found)) and len({*map(len, found)}) == 1


def _first(opened: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := _get(opened, name)) is not None), None)


def _get(opened: Any, name: str) -> Any:
    return opened.get(name) if isinstance(opened, Mapping) else getattr(opened, name, None)
