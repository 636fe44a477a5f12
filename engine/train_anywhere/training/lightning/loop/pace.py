"""How long a rank works by itself in a batch: from the end of the last one until its own gradients are there.

What comes after waits for other ranks: the average of the gradients comes with the slowest. Which parameter's gradient is the last
one is known once `training/lightning/loop/waiting.py` has seen a step; until then the work ends with the forward pass.
"""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


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
        self._followed: torch.Tensor | None = None
        self._hook: Any = None
        self._there = False

    def follow(self, parameter: torch.Tensor | None) -> None:
        """From here on the gradient of this one is the last of a backward pass; None: of nothing any more."""
        if parameter is self._followed:
            return
        if self._hook:
            self._hook.remove()
        self._followed, self._hook = parameter, None
        if parameter is not None:
            self._hook = parameter.register_post_accumulate_grad_hook(self._gradient)

    def begin(self) -> None:
        """A batch is done."""
        self._there = False
        if self.queues and self._first is None:
            self._first = event()

    def forward(self) -> None:
        """The forward pass is queued, or done."""
        heartbeat.at("backward")
        if self._followed is None:
            self._computed()

    def _gradient(self, parameter: torch.Tensor) -> None:
        """The rank's gradients are there."""
        self._computed()

    def _computed(self) -> None:
        """A batch may go backward several times, and wait for others in between: the first time counts."""
        if self._there:
            return
        self._there = True
        if self.gathers:
            heartbeat.computed(heartbeat.waited)
        else:
            heartbeat.computed(self._of_queue() if self.queues else None)

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
