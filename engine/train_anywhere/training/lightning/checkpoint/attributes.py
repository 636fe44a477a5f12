"""What a walk over attributes knows about torch and Lightning."""

import zlib
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics import Metric

from train_anywhere.training.attributes import Attributes, Framework

OWN = {*vars(nn.Module()), *vars(pl.LightningModule()), *vars(pl.LightningDataModule())}
"""Attributes of torch and Lightning in modules and data modules."""

OWN_OPTIMIZER = {*vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))]))}

FEW = 1024
"""Number of values of a tensor that are compared. A change that torch counts is always found."""


class Torch(Framework):
    """Torch and Lightning.

    Args:
        optimizers: those that the Trainer steps, whose state is in a checkpoint.
    """

    own = (pl.Trainer, Strategy, Logger, DataLoader, torch.device, torch.dtype, torch.finfo)

    walked = (nn.Module, pl.LightningDataModule, Optimizer, pl.Callback, Dataset, Sampler)
    arrays = (Tensor,)
    generators = (
        *Framework.generators,
        (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
    )

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.trained = {id(optimizer) for optimizer in optimizers}

    def version(self, array: Tensor) -> Any:
        """Return the number of changes in place and some of the values: torch does not count changes of `.data`.

        None for a tensor of inference mode.
        """
        if array.is_inference() or array.is_meta or array.layout != torch.strided:
            return None
        values = array.detach().reshape(-1)
        few = values[:: values.numel() // FEW + 1].cpu().contiguous()
        return array._version, zlib.crc32(few.view(torch.uint8).numpy().tobytes())

    def read(self, array: Tensor) -> np.ndarray | None:
        """Return the values of a tensor on the host, as bytes if numpy lacks its type. None without values."""
        if array.is_meta or array.layout != torch.strided:
            return None
        values = array.detach().cpu().contiguous()
        try:
            return values.numpy()
        except TypeError:  # bfloat16
            return values.reshape(-1).view(torch.uint8).numpy()

    def describe(self, array: Tensor) -> list[Any]:
        """Return dtype, shape and device type."""
        return [str(array.dtype).removeprefix("torch."), [*array.shape], array.device.type]

    def write(self, old: Any, values: np.ndarray, described: list[Any]) -> Any:
        """Copy into `old` if it is such a tensor, else return a new one."""
        name, shape, device = described
        dtype = getattr(torch, name)
        new = torch.from_numpy(values.copy())
        new = (new if new.dtype == dtype else new.view(dtype)).reshape(shape)
        if not isinstance(old, Tensor) or (old.shape, old.dtype) != (new.shape, dtype):
            return new.to(old.device if isinstance(old, Tensor) else device)
        with torch.no_grad():
            return old.copy_(new)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes of an object of torch or Lightning that are the user's."""
        if isinstance(owner, Optimizer):
            names = () if id(owner) in self.trained else ("param_groups", "state")
            own = {n: value for n, value in vars(owner).items() if n not in OWN_OPTIMIZER}
            return {n: getattr(owner, n) for n in names} | own
        if not isinstance(owner, self.walked):
            return None
        if isinstance(owner, pl.Callback) and not is_of_user(owner):
            return {}
        states = owner.metric_state if isinstance(owner, Metric) else {}
        found = {n: value for n, value in vars(owner).items() if n not in OWN and n not in states}
        # ddp sets the module's own `forward` as an attribute
        found = {n: v for n, v in found.items() if type(v) is not MethodType or v.__self__ is not owner}
        if isinstance(owner, (pl.LightningModule, pl.LightningDataModule)):
            found["hparams"] = owner.hparams
        if isinstance(owner, nn.Module):
            tensors = [*owner.named_buffers(recurse=False), *owner.named_parameters(recurse=False)]
            found |= dict([*owner.named_children(), *tensors])
        return found


def is_of_user(callback: pl.Callback) -> bool:
    """Return whether a callback's class is neither Lightning's nor of this project."""
    return type(callback).__module__.split(".")[0] not in ("lightning", "pytorch_lightning", "train_anywhere")


def of_trainer(trainer: pl.Trainer, report: Callable[[str], None]) -> Attributes:
    """Return the attributes of the module, the user's callbacks and data module, and the optimizers."""
    module, optimizers = trainer.lightning_module, trainer.optimizers
    persistent = module.state_dict(keep_vars=True).keys()

    def held() -> dict[str, Any]:
        buffers = ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)
        schedules = ((f"schedule {n}", c.scheduler) for n, c in enumerate(trainer.lr_scheduler_configs))
        return dict([*module.named_parameters(), *buffers, *schedules])

    roots: dict[str, Any] = {f"optimizers[{n}]": optimizer for n, optimizer in enumerate(optimizers)}
    roots |= {"module": module, "data": trainer.datamodule}
    for number, callback in enumerate(trainer.callbacks):
        if is_of_user(callback):
            roots[f"callbacks[{number}]"] = callback
    return Attributes(roots, Torch(optimizers), held, report)


def of_loader(loader: Any, report: Callable[[str], None]) -> Attributes:
    """Return the attributes of a loader's samplers and of its data set in this process."""
    names = ("sampler", "batch_sampler", "dataset", "generator")
    roots = {f"loader.{name}": getattr(loader, name, None) for name in names}
    return Attributes(roots, Torch([]), dict, report)


def waiting_gradients(trainer: pl.Trainer) -> dict[str, Tensor]:
    """Return the gradients that no step of the Trainer will compute again, by the parameter's name."""
    module = trainer.lightning_module
    groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
    stepped = {p for group in groups for p in group["params"]}
    manual = not module.automatic_optimization
    named = module.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None and (manual or p not in stepped)}


def to_tensor(data: bytes) -> Tensor:
    """Return bytes as uint8 [n], which a checkpoint can store."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def to_bytes(data: Iterable[Tensor]) -> list[bytes]:
    """Return the arguments of `to_tensor`."""
    return [one.numpy().tobytes() for one in data]
