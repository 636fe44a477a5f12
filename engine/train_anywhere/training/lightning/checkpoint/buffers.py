"""Host copies of a training state, in memory that is kept from one checkpoint to the next."""

import os
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train_anywhere.checkpoints.disk.writes import CHUNK, write_all

Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""Address, shape, strides and type of a tensor: two with the same are one, such as tied weights."""


class Buffers:
    """Memory for one copy of the state: made at the first checkpoint, and filled again at each of the next.

    New memory would cost more than the copy: the system must provide each of its pages first.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._state: Any = None
        self._copied: torch.cuda.Event | None = None

    def fill(self, state: Any) -> None:
        """Copy all tensors of a tree of dicts, lists and tuples; other leaves must not change later.

        From a GPU the copies are queued behind the present step and before the next; the host does not wait for them.
        """
        used: dict[Key, Tensor] = {}
        buffers = iter(self._kept)
        self._state = _map(state, lambda tensor: self._copy(tensor, used, buffers))
        self._kept = list(used.values())
        if torch.cuda.is_initialized():
            self._copied = torch.cuda.Event()
            self._copied.record()

    def write(self, file: Path) -> None:
        """Save the copy, as `torch.load` reads it. Any thread may call it until `fill` is called again.

        Raises:
            OSError: the disk fails.
        """
        if self._copied:
            self._copied.synchronize()
        try:
            torch.save(self._state, file)
        except RuntimeError as error:  # what torch makes of a full disk
            raise OSError(f"{file} can't be written: {why(file, error)}") from error

    def _copy(self, tensor: Tensor, used: dict[Key, Tensor], buffers: Iterator[Tensor]) -> Tensor:
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if key not in used:
            buffer = next(buffers, None)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            used[key] = buffer.copy_(tensor, non_blocking=True)
        return used[key]


def why(file: Path, error: RuntimeError) -> str:
    """Return why a disk took no more of a file: torch's error does not say it, so one more megabyte is written."""
    try:
        with open(file, "ab", buffering=0) as probe:
            write_all(probe.fileno(), memoryview(bytes(CHUNK)))
            os.fsync(probe.fileno())
    except OSError as trouble:
        return trouble.strerror or str(trouble)
    return str(error)


def _map(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with new containers, and `function` applied to its tensors."""
    if isinstance(tree, Tensor):
        return function(tree.detach())
    if isinstance(tree, dict):
        copied = copy(tree)  # keeps the type, and the versions of layers that torch hangs on a state dict
        copied.update({key: _map(value, function) for key, value in tree.items()})
        return copied
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(value, function) for value in tree)
    return tree
