"""Measure a rank's own work in a batch, its waits for data and for other ranks, and call what has no hook."""

import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.lightning.loop.steps import accumulates
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


def record_event() -> Any:
    """Append a CUDA event to the GPU's queue and return it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Clock(pl.Callback):
    """The first of all callbacks: the work of others does not count as waiting, and moments without a hook come before them.

    It reports the rank's own work to the heartbeat once per batch. Then the rank waits for the slowest rank to average the gradients. To
    measure this wait, from time to time each parameter has a hook for its gradient during a step; the last hook called marks the end of the
    rank's own backward pass. From then on the own work of a batch ends with the gradient of that parameter, before with the forward pass.

    CUDA events in the GPU's queue measure the time there, and are read when the GPU has passed them. FSDP waits for other ranks already in
    the forward pass, to gather weights, so with FSDP only the wait for data is reported.

    After an epoch it calls `epoch_over(trainer, module)` of the callbacks that have it: all hooks are over then, metrics are logged, and
    schedules that watch a metric have made their step. It calls `opened` when the training loaders are open.
    """

    def __init__(self, heartbeat: Heartbeat, opened: Callable[[pl.Trainer], None]) -> None:
        self.heartbeat, self._opened = heartbeat, opened
        self._is_over = self._started = False
        self._gathers = self._queues = self._measures = False
        # of the batch: events at its start and end, seconds of the newest one that was measured, whether its work is reported
        self._events: list[Any] = []
        self._seconds, self._done = 0.0, False
        # of the step: whether it has started, and if it is measured, its hooks, times, and the newest gradient's time and parameter
        self._stepping = False
        self._hooks: list[Any] = []
        self._marks: list[Any] = []
        self._own_end: Any = None
        self._last: torch.Tensor | None = None
        self._watched: torch.Tensor | None = None
        self._hook: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose what is measured, now that the strategy is set up and the loaders are open."""
        self._started = True
        self._opened(trainer)
        self._gathers = isinstance(trainer.strategy, FullyShardedStrategy)
        self._queues = trainer.strategy.root_device.type == "cuda"
        self._measures = trainer.world_size > 1 and not self._gathers

    def batch_over(self) -> None:
        """Start the time of the next batch."""
        self._done = False
        if self._queues and not self._events:
            self._events = [record_event()]

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Report that the batch has arrived, and measure the step that starts with it if that is due."""
        self.heartbeat.fetched()
        if self._stepping:
            return
        self._stepping = True
        self._read_marks()
        if self._measures and len(self._marks) < 3 and self.heartbeat.efficiency.due(self.heartbeat.trained):
            self._own_end, self._marks = None, [self._mark()]
            trained = (p for p in pl_module.parameters() if p.requires_grad)
            self._hooks = [p.register_post_accumulate_grad_hook(self._see_gradient) for p in trained]

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        self._own_end, self._last = self._mark(), parameter

    def on_before_backward(self, *args: Any) -> None:
        """Report the end of the forward pass, which on a GPU is only queued."""
        self.heartbeat.at("backward")
        if self._watched is None:
            self._report_work()

    def _report_work(self, *_: Any) -> None:
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
                self._seconds = self._between(*self._events)
                self._events = []
            own = self._seconds
        self.heartbeat.computed(own)

    def on_before_optimizer_step(self, *args: Any) -> None:
        """Note that the gradients are averaged, which may happen several times in a step."""
        if self._hooks and self._own_end is not None:
            self._marks += [self._own_end, self._mark()]
            self._own_end = None

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """End the measurement of an optimizer step, if the batch completes one."""
        if accumulates(trainer):
            return
        self._stepping = False
        if self._hooks:
            self._marks.append(self._mark())
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
        self._read_marks()
        self._watch(self._last)

    def _watch(self, parameter: torch.Tensor | None) -> None:
        """End the own work when this parameter gets its gradient, or for None after the forward pass."""
        if parameter is not self._watched:
            if self._hook:
                self._hook.remove()
            self._watched, self._hook = parameter, None
            if parameter is not None:
                self._hook = parameter.register_post_accumulate_grad_hook(self._report_work)

    def _mark(self) -> Any:
        return record_event() if self._queues else time.perf_counter()

    def _between(self, first: Any, then: Any) -> float:
        """Return the seconds between two marks."""
        return first.elapsed_time(then) / 1000 if self._queues else then - first

    def _read_marks(self) -> None:
        """Report the measured step once its marks have passed. It has more than a start and an end if gradients were averaged."""
        if len(self._marks) > 2 and (not self._queues or self._marks[-1].query()):
            (first, *waits, last), self._marks = self._marks, []
            waited = sum(self._between(*pair) for pair in zip(waits[::2], waits[1::2], strict=True))
            self.heartbeat.efficiency.add_step(self._between(first, last), waited)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note that the batches of an epoch are over."""
        trainer.fit_loop.on_iteration_done()  # in a resumed epoch Lightning would not update schedules that watch a metric
        self._is_over = True

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call `epoch_over` for the epoch before."""
        over, self._is_over = self._is_over, False
        if over:
            trainer.strategy.call("epoch_over", pl_module)  # type: ignore[attr-defined]

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call `epoch_over` for the last epoch, and remove the hook from the parameters."""
        self.on_train_epoch_start(trainer, pl_module)
        self._watch(None)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the state, and call the end hooks, if nothing was left to train: Lightning leaves them out."""
        self._opened(trainer)
        if trainer.ckpt_path and not self._started:
            trainer.strategy.on_train_start()
            for callback in trainer.callbacks:
                callback.on_train_end(trainer, pl_module)
            pl_module.on_train_end()
