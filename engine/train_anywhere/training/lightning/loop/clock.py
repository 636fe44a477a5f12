"""Measure a rank's own work in a batch, its waits for data and for other ranks, and call what has no hook."""

import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.lightning.loop.steps import accumulates
from train_anywhere.training.lightning.private import without_max_steps
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
        self._events: list[Any] = []  # at the start and end of the batch that is measured
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
        if self._queues and not self._events:
            self._events = [record_event()]

    def forward(self) -> None:
        """Record that the forward pass is computed, or on a GPU queued."""
        self.heartbeat.at("backward")
        if self._watched is None:
            self._mark_computed()

    def _mark_computed(self) -> None:
        """Report the own work once per batch: a second backward pass may include waits."""
        if self._done:
            return
        self._done, own = True, None
        if self._gathers:
            own = self.heartbeat.waited
        elif self._queues:  # the seconds of the newest measured batch, 0 before the first
            if len(self._events) == 1:
                self._events.append(record_event())
            elif self._events and self._events[1].query():
                self._seconds = self._events[0].elapsed_time(self._events[1]) / 1000
                self._events = []
            own = self._seconds
        self.heartbeat.computed(own)


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
        self._finish()
        if self._measures and not self._ended and self.heartbeat.efficiency.due(self.heartbeat.trained):
            self._own_end, self._marks = None, [self._mark()]
            trained = (p for p in self._module.parameters() if p.requires_grad)
            self._hooks = [p.register_post_accumulate_grad_hook(self._see_gradient) for p in trained]

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        self._own_end, self.last = self._mark(), parameter

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
        self._finish()

    def _mark(self) -> Any:
        return record_event() if self._queues else time.perf_counter()

    def _finish(self) -> None:
        """Remove the hooks, and report the measured step once its marks have passed."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._ended and (not self._queues or self._marks[-1].query()):
            self._ended = False
            first, *waits, last = self._marks
            waited = sum(self._seconds(*pair) for pair in zip(waits[::2], waits[1::2], strict=True))
            self.heartbeat.efficiency.add_step(self._seconds(first, last), waited)

    def _seconds(self, first: Any, then: Any) -> float:
        return first.elapsed_time(then) / 1000 if self._queues else then - first


class Clock(pl.Callback):
    """The first of all callbacks: the work of others does not count as waiting, and moments without a hook come before them.

    After an epoch it calls `epoch_over(trainer, module)` of the callbacks that have it: all hooks are over then, metrics are logged, and
    schedules that watch a metric have made their step, so a checkpoint that is saved there holds all of them.

    Args:
        opened: called when the training loaders are open.
    """

    def __init__(self, heartbeat: Heartbeat, opened: Callable[[pl.Trainer], None]) -> None:
        self.heartbeat, self._opened = heartbeat, opened
        self._timing = self._is_over = self._started = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Create the timers, now that the strategy is set up and the loaders are open."""
        self._started = True
        self._opened(trainer)
        self.pace = Pace(trainer, self.heartbeat)
        self.wait_timer = WaitTimer(trainer, pl_module, self.heartbeat)

    def batch_over(self) -> None:
        """Start the time of the next batch."""
        if self._started:
            self.pace.start()

    def on_train_batch_start(self, *args: Any) -> None:
        """Report that the batch has arrived."""
        self.heartbeat.fetched()
        if not self._timing:
            self._timing = True
            self.wait_timer.start()

    def on_before_backward(self, *args: Any) -> None:
        """Report the end of the forward pass."""
        self.pace.forward()

    def on_before_optimizer_step(self, *args: Any) -> None:
        """Report that the gradients are averaged."""
        self.wait_timer.mark_average()

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Report the end of an optimizer step, if the batch completes one."""
        if not accumulates(trainer):
            self._timing = False
            self.wait_timer.end()
            self.pace.watch(self.wait_timer.last)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the batches of an epoch are over."""
        with without_max_steps(trainer):
            # in a resumed epoch Lightning would not update schedules that watch a metric
            trainer.fit_loop.restarting = False
        self._is_over = True

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call `epoch_over` for the epoch before."""
        over, self._is_over = self._is_over, False
        for callback in trainer.callbacks if over else ():
            if hasattr(callback, "epoch_over"):
                callback.epoch_over(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call `epoch_over` for the last epoch, and remove the hook from the parameters."""
        self.on_train_epoch_start(trainer, pl_module)
        if self._started:
            self.pace.watch(None)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the state, and call the end hooks, if nothing was left to train: Lightning leaves them out."""
        self._opened(trainer)
        if trainer.ckpt_path and not self._started:
            trainer.strategy.on_train_start()
            for callback in trainer.callbacks:
                callback.on_train_end(trainer, pl_module)
            pl_module.on_train_end()
