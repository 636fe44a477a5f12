"""How long a checkpoint holds up the training of a GPU, beside `torch.save` of the same state to the same disk."""

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.gpu.lightning import tokens
from benchmarks.gpu.lightning.training import fit, state
from benchmarks.gpu.row import Place, Row

EVERY = 60
"""Steps between two checkpoints: seconds, so that each is on the disk before the next."""

LEFT_OUT = 1
"""The first allocates its buffers."""

CHECKPOINTS = 4

seconds: list[float] = []
"""Of each step, with all that comes between it and the next."""


class Steps(pl.Callback):
    """Measures each step when the device has done it."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Called before the checkpoint that this step may bring: that counts to the next one."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter())


def rows(place: Place) -> Iterator[Row]:
    """Both figures, and their ratio."""
    config, run = place.run(
        *tokens.words(place),
        f"trainer.max_steps={EVERY * CHECKPOINTS + 10}",
        f"checkpoint.every_n_steps={EVERY}",
        "callbacks.steps._target_=benchmarks.gpu.lightning.stall.Steps",
    )
    fit(config, run)
    took = [after - before for before, after in itertools.pairwise(seconds)]
    saved = [took[number - 1] for number in range(EVERY, len(took) + 1, EVERY)][LEFT_OUT:]
    usual = statistics.median(took)
    stall = statistics.median(saved) - usual
    held = state(run)
    size = sum(t.nbytes for t in _tensors(held))
    device = "cuda" if place.gpu else "cpu"
    there = torch.utils._pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, held)
    began = time.perf_counter()
    torch.save(there, place.folder / "saved.ckpt")
    plain = time.perf_counter() - began
    yield Row(
        f"a checkpoint of {size / 1e6:.0f} MB holds up the training",
        None,
        f"{1e3 * stall:.0f} ms (torch.save: {1e3 * plain:.0f} ms, ratio {stall / plain:.3f}); a step takes {1e3 * usual:.1f} ms",
    )


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
