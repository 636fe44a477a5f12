"""What a network answers to each row, collected while it is measured."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from train_anywhere.errors import ConfigError


class Answers(pl.Callback):
    """Collects what a network returns, without the rows that are padding."""

    def __init__(self, network: nn.Module) -> None:
        self.newest: Any = None
        self.kept: list[Any] = []
        self.hook = network.register_forward_hook(self._seen)

    def _seen(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self.newest = output

    def on_test_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Rows of weight 0 are padding."""
        real = batch.weight > 0
        self.kept.append(
            arrays_of(pytree.tree_map(lambda t: t[real] if isinstance(t, Tensor) else t, self.newest))
        )

    def arrays(self) -> Any:
        """All rows, in their order."""
        return joined(self.kept)


def arrays_of(tree: Any) -> Any:
    """Tensors as arrays; bfloat16, which numpy does not have, as float32."""

    def array(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()

    return pytree.tree_map(array, tree)


def joined(batches: list[Any]) -> Any:
    """Trees of arrays [b, ...] as one of arrays [n, ...]."""
    if not batches:
        raise ConfigError("there is no row to predict.")
    return pytree.tree_map(lambda *arrays: np.concatenate([np.atleast_1d(a) for a in arrays]), *batches)
