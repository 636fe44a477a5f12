"""Copies of the training state, limited to plain values, in reused host memory."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, dtype

from train_anywhere.errors import CheckpointError
from train_anywhere.files.copy_files import find_disk_error

Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""Address, shape, strides and type of a tensor. Tensors with the same key, such as tied weights, share one copy."""


class Buffers:
    """Memory for one copy of the state, which all checkpoints reuse.

    Allocating new memory would cost more than the copy itself, because the system must first provide each page.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._state: Any = None
        self._copied: torch.cuda.Event | None = None

    def fill(self, state: Any) -> None:
        """Copy all tensors in a tree of dicts, lists and tuples. Other leaves must not change.

        Copies from a GPU are queued after the current step and before the next one. The host does not wait for them.
        """
        tensors: list[Tensor] = []
        apply_to_collection(state, Tensor, tensors.append)
        used: dict[Key, Tensor] = {}
        copies: dict[int, Any] = {}
        free = iter(self._buffers)
        for tensor in tensors:
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if key not in used:
                buffer = next(free, None)
                if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                used[key] = buffer.copy_(tensor.detach(), non_blocking=True)
            copies[id(tensor)] = used[key]
        self._buffers = [*used.values()]
        # keeps the layer versions that torch attaches to a state dict
        self._state = deepcopy(state, copies)
        if torch.cuda.is_initialized():
            self._copied = torch.cuda.Event()
            self._copied.record()

    def write(self, file: Path) -> None:
        """Save the copy for `torch.load`. Any thread may call this until `fill`. Raises OSError."""
        if self._copied:
            self._copied.synchronize()
        try:
            with open(file, "wb") as opened:  # torch itself would hide the reason why it can't write
                torch.save(self._state, opened)
        except RuntimeError as error:
            raise find_disk_error(error) or error from None


SCALARS = (int, float, complex, str, bool, bytes, type(None), Tensor, dtype)

OPTIONAL = ("hyper_parameters", "datamodule_hyper_parameters", "callbacks")
"""Keys of a checkpoint whose single entries may be missing when it is read."""

NEEDED = ("epoch", "global_step", "optimizer_states", "lr_schedulers")
"""Keys of a checkpoint without which training can't resume."""

TRUSTED = ("state_dict", "loops", "rank_states", "trained", "training_weights")
"""Keys that Lightning or this project writes, always with plain values."""


class NotPlain(Exception):
    """A value that a checkpoint can't hold. The message gives its place and type."""


def keep_plain_values(
    checkpoint: dict[str, Any], report: Callable[[str], None], refuses: bool = False
) -> dict[str, Any]:
    """Return the checkpoint without the values that could not be read again, and report them.

    Raises CheckpointError if training needs one, or with `refuses` (`checkpoint.other_objects=refuse`) for one of a user's hook.
    """
    kept = {key: value for key, value in checkpoint.items() if key in TRUSTED}
    for key, value in checkpoint.items():
        if key in TRUSTED:
            continue
        in_parts = key in OPTIONAL and isinstance(value, Mapping)
        owner = kept.setdefault(key, {}) if in_parts else kept
        for name, one in value.items() if in_parts else [(key, value)]:
            try:
                owner[name] = _to_plain(one, f"{key}.{name}" if in_parts else key)
            except NotPlain as error:
                if not in_parts and (refuses or key in NEEDED):
                    fix = "; save its state_dict(), or use checkpoint.other_objects=leave_out"
                    raise CheckpointError(
                        f"a checkpoint can't hold {error}: it may hold only tensors, numbers, strings, lists and dicts, because "
                        f"reading anything else could run code{'' if key in NEEDED else fix}."
                    ) from error
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
