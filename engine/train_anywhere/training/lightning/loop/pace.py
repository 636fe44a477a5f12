"""Measure a rank's own work in a batch: from the end of the last batch until its own gradients are computed.

The time after that depends on other ranks, because averaging gradients waits for the slowest rank. `wait_timer.py` finds out which
parameter gets its gradient last; until it has seen a step, the own work ends with the forward pass.
"""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


class Pace:
    """Measures the own work, once per batch.

    The program only queues the work of a GPU. Two events in the queue take the time there; they are read some batches later, when
    they have passed, so nothing waits for them. FSDP gathers weights in the forward pass, which waits for other ranks: with it,
    only the wait for data is the rank's own.
    """

    def __init__(self, trainer: pl.Trainer, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        device = trainer.strategy.root_device
        self.gathers, self.queues = isinstance(trainer.strategy, FullyShardedStrategy), device.type == "cuda"
        self._first: Any = None
        self._last: Any = None
        self._known = 0.0
        self._followed: torch.Tensor | None = None
        self._hook: Any = None
        self._done = False

    def watch(self, parameter: torch.Tensor | None) -> None:
        """Watch this parameter as the last to get its gradient; None stops watching."""
        if parameter is self._followed:
            return
        if self._hook:
            self._hook.remove()
        self._followed, self._hook = parameter, None
        if parameter is not None:
            self._hook = parameter.register_post_accumulate_grad_hook(self._gradient)

    def start(self) -> None:
        """Start the time of the next batch."""
        self._done = False
        if self.queues and self._first is None:
            self._first = record_event()

    def forward(self) -> None:
        """Note the end of the forward pass, which is computed, or queued on a GPU."""
        self.heartbeat.at("backward")
        if self._followed is None:
            self._mark_computed()

    def _gradient(self, parameter: torch.Tensor) -> None:
        """Note the last gradient of a backward pass."""
        self._mark_computed()

    def _mark_computed(self) -> None:
        """Report the own work, at the first backward pass of a batch: between several of them a rank may wait for others."""
        if self._done:
            return
        self._done = True
        if self.gathers:
            self.heartbeat.computed(self.heartbeat.waited)
        else:
            self.heartbeat.computed(self._gpu_seconds() if self.queues else None)

    def _gpu_seconds(self) -> float:
        """Return the seconds that the GPU worked in the newest measured batch."""
        if self._first is not None and self._last is None:
            self._last = record_event()
        elif self._last is not None and self._last.query():
            self._known = self._first.elapsed_time(self._last) / 1000
            self._first = self._last = None
        return self._known


def record_event() -> Any:
    """Return a CUDA event at the end of the GPU's queue."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
