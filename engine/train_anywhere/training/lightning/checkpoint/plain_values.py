"""Limit checkpoints to tensors, numbers, strings, and lists and dicts of them. Reading any other object could run code."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, dtype

from train_anywhere.errors import CheckpointError

SCALARS = (int, float, complex, str, bool, bytes, type(None), Tensor, dtype)
OPTIONAL = ("hyper_parameters", "datamodule_hyper_parameters", "callbacks")
"""Keys of a checkpoint whose single entries may be missing when it is read."""
NEEDED = ("epoch", "global_step", "optimizer_states", "lr_schedulers")
"""Keys of a checkpoint without which training can't resume."""
TRUSTED = ("state_dict", "loops", "random_states", "rank_states", "early_stop", "trained", "training_weights")
"""Keys that Lightning or this project writes, always with plain values."""


class NotPlain(Exception):
    """A value that a checkpoint can't hold; the message gives its place and type."""


def keep_plain_values(
    checkpoint: dict[str, Any], report: Callable[[str], None], refuses: bool = False
) -> dict[str, Any]:
    """Return the checkpoint without the values that could not be read again; `report` prints a line for each.

    With `refuses` (`checkpoint.other_objects=refuse`), such a value of a user's hook is an error.

    Raises:
        CheckpointError: training needs a value that a checkpoint can't hold.
    """
    kept: dict[str, Any] = {}
    for key, value in checkpoint.items():
        if key in OPTIONAL and isinstance(value, Mapping):
            kept[key] = _keep_plain_entries(key, value, report)
        elif key in TRUSTED:
            kept[key] = value
        elif refuses or key in NEEDED:
            try:
                kept[key] = _to_plain(value, key)
            except NotPlain as error:
                fix = (
                    ""
                    if key in NEEDED
                    else "; save its state_dict(), or use checkpoint.other_objects=leave_out"
                )
                raise CheckpointError(
                    f"a checkpoint can't hold {error}: it may hold only tensors, numbers, strings, lists and dicts, because reading "
                    f"anything else could run code{fix}."
                ) from error
        else:
            kept |= _keep_plain_entries("", {key: value}, report)
    return kept


def _keep_plain_entries(
    part: str, entries: Mapping[str, Any], report: Callable[[str], None]
) -> dict[str, Any]:
    kept = {}
    for key, value in entries.items():
        try:
            kept[key] = _to_plain(value, f"{part}.{key}".lstrip("."))
        except NotPlain as error:
            report(
                f"left out of the checkpoints: {error}, which could not be read again without running code."
            )
    return kept


def _to_plain(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in SCALARS or isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {_to_plain(k, path): _to_plain(v, f"{path}.{k}") for k, v in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_to_plain(v, path) for v in value)
    raise NotPlain(f"{path} (a {type(value).__module__}.{type(value).__qualname__})")
