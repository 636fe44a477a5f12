"""What a checkpoint may hold: tensors, numbers, texts, and lists and dicts of them. Reading anything else could run code."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, dtype

from train_anywhere.errors import CheckpointError

SCALARS = (int, float, complex, str, bool, bytes, type(None), Tensor, dtype)
OPTIONAL = ("hyper_parameters", "datamodule_hyper_parameters", "callbacks")
"""Parts of a checkpoint of which single entries may be missing when it is read."""
NEEDED = ("epoch", "global_step", "optimizer_states", "lr_schedulers")
"""Parts without which a training can't resume."""
OWN = ("state_dict", "loops", "random_states", "rank_states", "early_stop", "trained", "training_weights")


class NotPlain(Exception):
    """A value that a checkpoint can't hold; the text says where it is and of what type."""


def with_plain_values(
    checkpoint: dict[str, Any], tell: Callable[[str], None], refuses: bool = False
) -> dict[str, Any]:
    """Return the checkpoint without what could not be read again.

    Args:
        tell: prints a line, for each entry that is left out.
        refuses: raise at an entry that a user's hook has added, see `checkpoint.other_objects`.

    Raises:
        CheckpointError: something that is needed can't be in it.
    """
    kept: dict[str, Any] = {}
    for key, value in checkpoint.items():
        if key in OPTIONAL and isinstance(value, Mapping):
            kept[key] = _entries(key, value, tell)
        elif key in OWN:
            kept[key] = value
        elif refuses or key in NEEDED:
            try:
                kept[key] = _plain(value, key)
            except NotPlain as error:
                way = (
                    ""
                    if key in NEEDED
                    else "; save its state_dict(), or use checkpoint.other_objects=leave_out"
                )
                raise CheckpointError(
                    f"a checkpoint can't hold {error}: it has tensors, numbers, texts, lists and dicts only, for reading anything else "
                    f"could run code{way}."
                ) from error
        else:
            kept |= _entries("", {key: value}, tell)
    return kept


def _entries(part: str, entries: Mapping[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    kept = {}
    for key, value in entries.items():
        try:
            kept[key] = _plain(value, f"{part}.{key}".lstrip("."))
        except NotPlain as error:
            tell(f"left out of the checkpoints: {error}, which could not be read again without running code.")
    return kept


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in SCALARS or isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {_plain(k, path): _plain(v, f"{path}.{k}") for k, v in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_plain(v, path) for v in value)
    raise NotPlain(f"{path} (a {type(value).__module__}.{type(value).__qualname__})")
