"""How long a rank waits for others in a step, see `monitor/efficiency.py`."""

import time
from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.training.lightning.loop.pace import event
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


class Waiting:
    """Measures it in a step now and then.

    In such a step each parameter has a hook for its gradient, of which the last one that is called marks the end of the rank's own
    backward pass. On a GPU the marks are events in its queue, and are read when they have passed. FSDP waits for others in the
    forward pass too, so there is nothing to tell apart.

    Attributes:
        last: the parameter whose gradient was the last one in the newest step that was measured.
    """

    def __init__(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._module = module
        self._measures = trainer.world_size > 1 and not isinstance(trainer.strategy, FullyShardedStrategy)
        self._queues = trainer.strategy.root_device.type == "cuda"
        self.last: torch.Tensor | None = None
        self._hooks: list[Any] = []
        self._there: Any = None
        self._marks: list[Any] = []
        self._ended = False

    def begin(self) -> None:
        """The first batch of a step has come."""
        self._read()
        self._remove()
        if self._measures and not self._ended and heartbeat.efficiency.due(heartbeat.trained):
            self._there, self._marks = None, [self._mark()]
            hook = self._gradient
            trained = (p for p in self._module.parameters() if p.requires_grad)
            self._hooks = [p.register_post_accumulate_grad_hook(hook) for p in trained]

    def averaged(self) -> None:
        """The average over all ranks is there; a step by hand may come here several times."""
        if self._hooks and self._there is not None:
            self._marks += [self._there, self._mark()]
            self._there = None

    def end(self) -> None:
        """The optimizer step is done."""
        if self._hooks:
            self._marks.append(self._mark())
            self._ended = len(self._marks) > 2
        self._remove()
        self._read()

    def _gradient(self, parameter: torch.Tensor) -> None:
        self._there, self.last = self._mark(), parameter

    def _mark(self) -> Any:
        return event() if self._queues else time.perf_counter()

    def _remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _read(self) -> None:
        """Once the marks have passed."""
        if not self._ended or (self._queues and not self._marks[-1].query()):
            return
        self._ended = False
        first, *waits, last = self._marks
        waited = sum(
            self._seconds(there, average) for there, average in zip(waits[::2], waits[1::2], strict=True)
        )
        heartbeat.efficiency.measured(self._seconds(first, last), waited)

    def _seconds(self, first: Any, then: Any) -> float:
        return first.elapsed_time(then) / 1000 if self._queues else then - first
