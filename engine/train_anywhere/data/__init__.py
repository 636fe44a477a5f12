"""Pipelines that feed every data set to every framework in the same order.

`open_data.open_splits` calls the function that `data._target_` names, which returns `dataset.Splits`. `order.assignment` assigns rows to
ranks as a pure function of seed, epoch, batch and rank. `torch` and `tf` read these rows in workers or threads, with weights (padding
has weight 0) or without. A user's map-style data set is read in the same order, an iterable one in its own.

The names in `__all__` are public. They are imported on first use: some need numpy, which a submission does not import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_anywhere.data.dataset import ArraySet, Splits, image_splits
    from train_anywhere.data.folders import fetch, prepare_folder
    from train_anywhere.data.known import Known
    from train_anywhere.data.listing import describe, is_hidden, left_out, walk
    from train_anywhere.data.order.shuffle import permutation
    from train_anywhere.files.node_disk import Staged, as_it_is, is_archive

__all__ = [
    "ArraySet",
    "Known",
    "Splits",
    "Staged",
    "as_it_is",
    "describe",
    "fetch",
    "image_splits",
    "is_archive",
    "is_hidden",
    "left_out",
    "permutation",
    "prepare_folder",
    "walk",
]

_MODULES = (
    "data.known", "data.listing", "files.node_disk", "data.folders", "data.dataset", "data.order.shuffle",
)  # fmt: skip
"""The modules of the names, the two that import numpy last."""


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        if hasattr(found := importlib.import_module(f"train_anywhere.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
