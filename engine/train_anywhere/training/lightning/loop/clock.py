"""Measure a rank's own work in a batch, and its waits for data and for other ranks."""

import time
from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.lightning.loop.steps import accumulates
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


class Pace:
    """A timer of the rank's own work, which reports to the heartbeat once per batch.

    The rank then waits for the slowest rank to average the gradients. `WaitTimer` finds out which parameter gets its gradient last; until
    it has measured a step, the rank's own work is taken to end with the forward pass.

    The program only queues work on a GPU, so two CUDA events in the queue measure the time there. They are read some batches later,
    when the GPU has passed them, so the program never waits for them. FSDP waits for other ranks already in the forward pass, to
    gather weights, so with FSDP only the wait for data is reported.
    """

    def __init__(self, trainer: pl.Trainer, heartbeat: Heartbeat) -> None:
        self.heartbeat, strategy = heartbeat, trainer.strategy
        self._gathers = isinstance(strategy, FullyShardedStrategy)
        self._queues = strategy.root_device.type == "cuda"
        self._start_event: Any = None
        self._end_event: Any = None
        self._watched: torch.Tensor | None = None
        self._hook: Any = None
        self._seconds, self._done = 0.0, False

    def watch(self, parameter: torch.Tensor | None) -> None:
        """End the own work when this parameter gets its gradient, or for None after the forward."""
        if parameter is self._watched:
            return
        if self._hook:
            self._hook.remove()
        self._watched, self._hook = parameter, None
        if parameter is not None:
            self._hook = parameter.register_post_accumulate_grad_hook(lambda _: self._mark_computed())

    def start(self) -> None:
        """Start timing the next batch."""
        self._done = False
        if self._queues and self._start_event is None:
            self._start_event = record_event()

    def forward(self) -> None:
        """Record that the forward pass is computed, or on a GPU queued."""
        self.heartbeat.at("backward")
        if self._watched is None:
            self._mark_computed()

    def _mark_computed(self) -> None:
        """Report the own work once per batch: a second backward pass may include waits."""
        if self._done:
            return
        self._done = True
        own = self._gpu_seconds() if self._queues else None
        self.heartbeat.computed(self.heartbeat.waited if self._gathers else own)

    def _gpu_seconds(self) -> float:
        """Return the GPU seconds of the newest measured batch (0 before the first)."""
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


class WaitTimer:
    """Measures the waiting time in a step from time to time.

    In such a step each parameter has a hook for its gradient; the last hook called marks the end of the rank's own backward pass.
    On a GPU the marks are events in its queue, which are read when they have passed. With FSDP nothing is measured, because the
    forward pass waits for other ranks too.

    Attributes:
        last: the parameter that got its gradient last, in the newest measured step.
    """

    def __init__(self, trainer: pl.Trainer, module: pl.LightningModule, heartbeat: Heartbeat) -> None:
        self._module, self.heartbeat = module, heartbeat
        self._measures = trainer.world_size > 1 and not isinstance(trainer.strategy, FullyShardedStrategy)
        self._queues = trainer.strategy.root_device.type == "cuda"
        self.last: torch.Tensor | None = None
        self._hooks: list[Any] = []
        self._own_end: Any = None
        self._marks: list[Any] = []
        self._ended = False

    def start(self) -> None:
        """Start a step, when its first batch has arrived."""
        self._read()
        self._remove()
        if self._measures and not self._ended and self.heartbeat.efficiency.due(self.heartbeat.trained):
            self._own_end, self._marks = None, [self._mark()]
            hook = self._gradient
            trained = (p for p in self._module.parameters() if p.requires_grad)
            self._hooks = [p.register_post_accumulate_grad_hook(hook) for p in trained]

    def mark_average(self) -> None:
        """Note that the gradients are averaged, which may happen several times in a step."""
        if self._hooks and self._own_end is not None:
            self._marks += [self._own_end, self._mark()]
            self._own_end = None

    def end(self) -> None:
        """Note the end of the optimizer step."""
        if self._hooks:
            self._marks.append(self._mark())
            self._ended = len(self._marks) > 2
        self._remove()
        self._read()

    def _gradient(self, parameter: torch.Tensor) -> None:
        self._own_end, self.last = self._mark(), parameter

    def _mark(self) -> Any:
        return record_event() if self._queues else time.perf_counter()

    def _remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _read(self) -> None:
        """Report the measured step, once its marks have passed."""
        if not self._ended or (self._queues and not self._marks[-1].query()):
            return
        self._ended = False
        first, *waits, last = self._marks
        pairs = zip(waits[::2], waits[1::2], strict=True)
        waited = sum(self._seconds(own_end, average) for own_end, average in pairs)
        self.heartbeat.efficiency.add_step(self._seconds(first, last), waited)

    def _seconds(self, first: Any, then: Any) -> float:
        return first.elapsed_time(then) / 1000 if self._queues else then - first


class Clock(pl.Callback):
    """The first of all callbacks, so that the work of others does not count as waiting."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.heartbeat, self._timing = heartbeat, False
        self.pace: Pace | None = None
        self.wait_timer: WaitTimer | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Create the timers, now that the strategy is set up."""
        self.pace, self.wait_timer = (
            Pace(trainer, self.heartbeat),
            WaitTimer(trainer, pl_module, self.heartbeat),
        )

    def batch_over(self) -> None:
        """Start the time of the next batch."""
        if self.pace:
            self.pace.start()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Report that the batch has arrived."""
        self.heartbeat.fetched()
        if self.wait_timer and not self._timing:
            self._timing = True
            self.wait_timer.start()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """Report the end of the forward pass."""
        if self.pace:
            self.pace.forward()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Report that the gradients are averaged."""
        if self.wait_timer:
            self.wait_timer.mark_average()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the end of an optimizer step, if the batch completes one."""
        if self.pace and self.wait_timer and not accumulates(trainer):
            self._timing = False
            self.wait_timer.end()
            self.pace.watch(self.wait_timer.last)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hook from the parameters."""
        if self.pace:
            self.pace.watch(None)
