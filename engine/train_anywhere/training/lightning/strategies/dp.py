"""torch's DataParallel on one node: one process splits each batch over all its devices.

Lightning 2.0 removed this strategy. Compared with `ddp`, one Python process feeds all GPUs, and the weights are copied
to each of them at every step: simpler to debug, slower to train.
"""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.parallel import data_parallel

from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.module import TaskModule


class DataParallel(SingleDeviceStrategy):
    """Runs the network on parts of the batch, one per device; loss, metrics and optimizer use the whole batch.

    As in torch's DataParallel, each part of a batch has its own batch statistics. Without GPUs the parts are computed one after
    another, so this can be tried on any machine.

    Args:
        devices: the devices; the first one holds the weights.
    """

    strategy_name = "dp"

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__(devices[0])
        self.devices = devices

    def setup(self, trainer: pl.Trainer) -> None:
        """Set up as for one device, then run the task's network on all devices.

        Raises:
            ConfigError: the module computes its own loss, which can't be split.
        """
        super().setup(trainer)
        module = self.lightning_module
        if not isinstance(module, TaskModule):
            raise ConfigError(
                f"strategy=dp splits only the network of a task, and {type(module).__qualname__} computes its loss itself; use "
                "strategy=ddp."
            )
        module.wrapped = [SplitNetwork(module.network, self.devices)]


class SplitNetwork:
    """A network that is called with a whole batch and runs on all devices; other attributes are those of the network."""

    def __init__(self, network: nn.Module, devices: list[torch.device]) -> None:
        self.network, self.devices = network, devices

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return predictions for the whole batch on the first device; input tensors are [b, ...]."""
        if self.devices[0].type == "cuda":
            return data_parallel(self.network, inputs, self.devices, module_kwargs=named)
        return _join([self.network(*args, **kwargs) for args, kwargs in self._parts(inputs, named)])

    def _parts(self, inputs: Any, named: Any) -> list[Any]:
        """Return the inputs of each device."""
        return _split((inputs, named), len(self.devices))


def _split(tree: Any, count: int) -> list[Any]:
    """Split the tensors [b, ...] in tuples, lists and dicts into at most `count` parts; other values are in each part."""
    if isinstance(tree, Tensor) and tree.dim():
        return list(tree.chunk(count))
    if isinstance(tree, Mapping):
        parts = [_split(value, count) for value in tree.values()]
        return [dict(zip(tree, part, strict=True)) for part in _group_by_device(parts, count)]
    if isinstance(tree, tuple | list):
        parts = [_split(value, count) for value in tree]
        return [_make_like(tree, part) for part in _group_by_device(parts, count)]
    return [tree]


def _group_by_device(parts: list[list[Any]], count: int) -> list[list[Any]]:
    """Group the parts of several inputs by device; an input with one part is the same for all devices."""
    most = max((len(part) for part in parts), default=1)
    return [[part[n if len(part) > 1 else 0] for part in parts] for n in range(min(most, count))]


def _join(outputs: list[Any]) -> Any:
    """Join predictions: the reverse of `_split`."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.dim() else torch.stack(outputs)
    if isinstance(first, Mapping):
        return type(first)({key: _join([output[key] for output in outputs]) for key in first})  # type: ignore[call-arg]
    if isinstance(first, tuple | list):
        return _make_like(first, [_join(list(values)) for values in zip(*outputs, strict=True)])
    return first


def _make_like(sequence: Any, values: list[Any]) -> Any:
    return type(sequence)(*values) if hasattr(sequence, "_fields") else type(sequence)(values)


def list_devices(first: torch.device, count: int) -> list[torch.device]:
    """Return `count` devices of this process; without GPUs, the CPU `count` times. Raises ConfigError if there are fewer GPUs."""
    if first.type != "cuda":
        return [first] * count
    if count > torch.cuda.device_count():
        raise ConfigError(
            f"strategy=dp needs {count} GPUs and this process sees {torch.cuda.device_count()}; "
            f"use trainer.devices={torch.cuda.device_count()}."
        )
    return [torch.device("cuda", number) for number in range(count)]
