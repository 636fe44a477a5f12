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
    from train_anywhere.data.download import fetch
    from train_anywhere.data.known import Known
    from train_anywhere.data.listing import describe, is_hidden, left_out, walk
    from train_anywhere.data.order.shuffle import permutation
    from train_anywhere.data.prepared_folder import prepare_folder
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

_MODULES = {
    "ArraySet": "data.dataset",
    "Known": "data.known",
    "Splits": "data.dataset",
    "Staged": "files.node_disk",
    "as_it_is": "files.node_disk",
    "describe": "data.listing",
    "fetch": "data.download",
    "image_splits": "data.dataset",
    "is_archive": "files.node_disk",
    "is_hidden": "data.listing",
    "left_out": "data.listing",
    "permutation": "data.order.shuffle",
    "prepare_folder": "data.prepared_folder",
    "walk": "data.listing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"train_anywhere.{_MODULES[name]}"), name)
