"""Collect a network's predictions for each row while it is evaluated."""

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from train_anywhere.errors import ConfigError


class CollectPredictions(pl.Callback):
    """Callback that collects what a network returns, without padding rows."""

    def __init__(self, network: nn.Module) -> None:
        self.newest: Any = None
        self.batches: list[Any] = []
        self.hook = network.register_forward_hook(self._remember)

    def _remember(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self.newest = output

    def on_test_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Keep the predictions of a batch; rows of weight 0 are padding."""
        real = batch.weight > 0
        self.batches.append(
            as_numpy(pytree.tree_map(lambda t: t[real] if isinstance(t, Tensor) else t, self.newest))
        )

    def arrays(self) -> Any:
        """Return the predictions of all rows, in their order: arrays [n, ...]."""
        return concatenate(self.batches)


def as_numpy(tree: Any) -> Any:
    """Return the tree with numpy arrays in place of tensors; bfloat16, which numpy lacks, becomes float32."""

    def array(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()

    return pytree.tree_map(array, tree)


def concatenate(batches: list[Any]) -> Any:
    """Return trees of arrays [b, ...] as one tree of arrays [n, ...]. Raises ConfigError if there are none."""
    if not batches:
        raise ConfigError("there is no row to predict.")
    return pytree.tree_map(lambda *arrays: np.concatenate([np.atleast_1d(a) for a in arrays]), *batches)
