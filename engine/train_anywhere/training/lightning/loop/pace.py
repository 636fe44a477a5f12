"""Measure a rank's own work in a batch: from the end of the previous batch until its gradients are computed.

After that, the rank waits for the slowest rank to average the gradients. `clock.py` finds out which parameter gets its
gradient last; until it has measured a step, the rank's own work is taken to end with the forward pass.
"""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


class Pace:
    """A timer of the rank's own work, which reports to the heartbeat once per batch.

    The program only queues work on a GPU, so two CUDA events in the queue measure the time there. They are read some batches later,
    when the GPU has passed them, so the program never waits for them. FSDP waits for other ranks already in the forward pass, to
    gather weights, so with FSDP only the wait for data is reported.

    Attributes:
        gathers: whether the strategy is FSDP.
        queues: whether the device is a GPU.
    """

    def __init__(self, trainer: pl.Trainer, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        device = trainer.strategy.root_device
        self.gathers, self.queues = isinstance(trainer.strategy, FullyShardedStrategy), device.type == "cuda"
        self._start_event: Any = None
        self._end_event: Any = None
        self._seconds = 0.0
        self._watched: torch.Tensor | None = None
        self._hook: Any = None
        self._done = False

    def watch(self, parameter: torch.Tensor | None) -> None:
        """End the own work when this parameter, the last one, gets its gradient; None: when the forward pass ends."""
        if parameter is self._watched:
            return
        if self._hook:
            self._hook.remove()
        self._watched, self._hook = parameter, None
        if parameter is not None:
            self._hook = parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def start(self) -> None:
        """Start timing the next batch."""
        self._done = False
        if self.queues and self._start_event is None:
            self._start_event = record_event()

    def forward(self) -> None:
        """Record that the forward pass is computed, or on a GPU queued."""
        self.heartbeat.at("backward")
        if self._watched is None:
            self._mark_computed()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Record that the watched parameter got its gradient: the hook of `watch`."""
        self._mark_computed()

    def _mark_computed(self) -> None:
        """Report the own work, only once per batch: before a second backward pass the rank may wait for others."""
        if self._done:
            return
        self._done = True
        if self.gathers:
            self.heartbeat.computed(self.heartbeat.waited)
        else:
            self.heartbeat.computed(self._gpu_seconds() if self.queues else None)

    def _gpu_seconds(self) -> float:
        """Return the GPU seconds of the newest measured batch (0 before the first), after recording or reading the end event."""
        if self._start_event is not None and self._end_event is None:
            self._end_event = record_event()
        elif self._end_event is not None and self._end_event.query():
            self._seconds = self._start_event.elapsed_time(self._end_event) / 1000
            self._start_event = self._end_event = None
        return self._seconds


def record_event() -> Any:
    """Append a CUDA event to the GPU's queue and return it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
