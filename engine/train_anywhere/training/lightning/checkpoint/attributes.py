"""What a walk over attributes knows about torch and Lightning."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from train_anywhere.training.attributes import Framework

OWN = {
    *vars(nn.Module()),
    *vars(pl.LightningModule()),
    *vars(pl.LightningDataModule()),
}
"""Attributes of torch and Lightning in modules and data modules."""

OWN_OPTIMIZER = {*vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))]))}


class Torch(Framework):
    """Torch and Lightning.

    Args:
        optimizers: those that the Trainer steps, whose state is in a checkpoint.
    """

    own = (pl.Trainer, Strategy, Logger, DataLoader, torch.device, torch.dtype, torch.finfo)

    walked = (nn.Module, pl.LightningDataModule, Optimizer)

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.trained = {id(optimizer) for optimizer in optimizers}

    def is_array(self, kind: type) -> bool:
        """Return whether values of this type are tensors."""
        return issubclass(kind, Tensor)

    def version(self, array: Tensor) -> Any:
        """Return the number of changes in place, which torch counts. None for a tensor of inference mode."""
        return None if array.is_inference() else array._version

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

    def random_state(self, value: Any) -> Any:
        """Return the state of a generator."""
        return value.get_state() if isinstance(value, torch.Generator) else super().random_state(value)

    def set_random_state(self, value: Any, state: Any) -> bool:
        """Set the state of a generator. Return False for any other value."""
        if isinstance(value, torch.Generator):
            value.set_state(state)
            return True
        return super().set_random_state(value, state)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes of a module, data module or optimizer without those of torch and Lightning."""
        if isinstance(owner, Optimizer):
            state = (
                {}
                if id(owner) in self.trained
                else {"param_groups": owner.param_groups, "state": owner.state}
            )
            return state | {name: value for name, value in vars(owner).items() if name not in OWN_OPTIMIZER}
        if not isinstance(owner, self.walked):
            return None
        found = {name: value for name, value in vars(owner).items() if name not in OWN}
        if isinstance(owner, nn.Module):
            tensors = [*owner.named_buffers(recurse=False), *owner.named_parameters(recurse=False)]
            found |= dict([*owner.named_children(), *tensors])
        return found


def held_by_checkpoint(trainer: pl.Trainer, persistent: set[str]) -> dict[str, Any]:
    """Return what a checkpoint of Lightning holds, by name.

    Args:
        persistent: names in the module's state dict.
    """
    module = trainer.lightning_module
    tensors = [*module.named_parameters(), *((n, b) for n, b in module.named_buffers() if n in persistent)]
    schedules = {f"schedule {n}": c.scheduler for n, c in enumerate(trainer.lr_scheduler_configs)}
    return {**dict(tensors), **schedules}
