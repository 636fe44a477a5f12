"""torch's DataParallel on one node: one process, which shares out each batch over all its devices.

Lightning 2.0 removed its own. Compared with `ddp`, one Python process feeds all GPUs, and the weights travel
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
    """Runs the network on parts of the batch, one per device; loss, metrics and optimizer see the whole batch.

    Each part of a batch has batch statistics of its own, as in torch's DataParallel. Without GPUs the parts
    are computed one after another, so it can be tried on any machine.

    Args:
        devices: the first one keeps the weights.
    """

    strategy_name = "dp"

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__(devices[0])
        self.devices = devices

    def setup(self, trainer: pl.Trainer) -> None:
        """As for one device, but the task's network runs on all of them.

        Raises:
            ConfigError: the module computes its own loss, which can't be taken apart.
        """
        super().setup(trainer)
        module = self.lightning_module
        if not isinstance(module, TaskModule):
            raise ConfigError(
                f"strategy=dp runs the network of a task on several devices, and {type(module).__qualname__} computes its loss itself, on "
                "one; use strategy=ddp."
            )
        module.called = [Shared(module.network, self.devices)]


class Shared:
    """A network that is called with a whole batch and runs on all devices; anything else is asked of the network itself."""

    def __init__(self, network: nn.Module, devices: list[torch.device]) -> None:
        self.network, self.devices = network, devices

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Predictions for the whole batch, on the first device; tensors among the inputs are [b, ...]."""
        if self.devices[0].type == "cuda":
            return data_parallel(self.network, inputs, self.devices, module_kwargs=named)
        return _join([self.network(*args, **kwargs) for args, kwargs in self._parts(inputs, named)])

    def _parts(self, inputs: Any, named: Any) -> list[Any]:
        """The inputs of each device."""
        return _split((inputs, named), len(self.devices))


def _split(tree: Any, count: int) -> list[Any]:
    """Tuples, lists and dicts of tensors [b, ...], taken apart into as many of their like as there are parts; the rest is in each."""
    if isinstance(tree, Tensor) and tree.dim():
        return list(tree.chunk(count))
    if isinstance(tree, Mapping):
        parts = [_split(value, count) for value in tree.values()]
        return [dict(zip(tree, part, strict=True)) for part in _together(parts, count)]
    if isinstance(tree, tuple | list):
        parts = [_split(value, count) for value in tree]
        return [_like(tree, part) for part in _together(parts, count)]
    return [tree]


def _together(parts: list[list[Any]], count: int) -> list[list[Any]]:
    """By device, what each of some inputs has for it; an input of one part is the same for all."""
    fewest = max((len(part) for part in parts), default=1)
    return [[part[n if len(part) > 1 else 0] for part in parts] for n in range(min(fewest, count))]


def _join(outputs: list[Any]) -> Any:
    """The reverse of `_split` for predictions."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.dim() else torch.stack(outputs)
    if isinstance(first, Mapping):
        return type(first)({key: _join([output[key] for output in outputs]) for key in first})  # type: ignore[call-arg]
    if isinstance(first, tuple | list):
        return _like(first, [_join(list(values)) for values in zip(*outputs, strict=True)])
    return first


def _like(sequence: Any, values: list[Any]) -> Any:
    return type(sequence)(*values) if hasattr(sequence, "_fields") else type(sequence)(values)


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """`count` devices of one process; without GPUs, the CPU repeated `count` times.

    Raises:
        ConfigError: there are fewer GPUs.
    """
    if first.type != "cuda":
        return [first] * count
    if count > torch.cuda.device_count():
        raise ConfigError(
            f"strategy=dp needs {count} GPUs and this process sees {torch.cuda.device_count()}; "
            f"use trainer.devices={torch.cuda.device_count()}."
        )
    return [torch.device("cuda", number) for number in range(count)]
