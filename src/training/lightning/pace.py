"""How long a rank works by itself in a batch: from the end of the last one to the end of its forward pass.

What comes after may wait for other ranks: DDP averages gradients while it computes them, and waits for the slowest.
"""

from typing import Any

import lightning.pytorch as pl
import torch

from src.monitor.heartbeat import own as heartbeat
from src.training.lightning.strategies.fsdp import FullyShardedStrategy


class Pace:
    """Measures it, once a batch.

    On a GPU the program only queues the work; two events in that queue take the time there, and are read when they have
    passed, some batches later: nothing waits for them. FSDP gathers weights in the forward pass, which waits for others: there
    only the wait for data is the rank's own.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        device = trainer.strategy.root_device
        self.gathers, self.queues = isinstance(trainer.strategy, FullyShardedStrategy), device.type == "cuda"
        self._first: Any = None
        self._last: Any = None
        self._known = 0.0

    def begin(self) -> None:
        """A batch is done."""
        if self.queues and self._first is None:
            self._first = event()

    def seconds(self) -> float | None:
        """The forward pass is queued, or done: seconds of the rank's own work; None for the time since the last batch."""
        if self.gathers:
            return heartbeat.waited
        return self._of_queue() if self.queues else None

    def _of_queue(self) -> float:
        """Of the newest batch that was measured."""
        if self._first is not None and self._last is None:
            self._last = event()
        elif self._last is not None and self._last.query():
            self._known = self._first.elapsed_time(self._last) / 1000
            self._first = self._last = None
        return self._known


def event() -> Any:
    """A mark at the end of what the GPU has to do so far."""
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made
