"""Lightning's loop over the batches of an epoch, changed to call only overridden hooks.

Lightning calls about thirty hooks of each callback and of the module in every step, each in a profiler context, even if none is
overridden. This is most of the time that its Trainer adds to a step (engine/benchmarks/step.py). Here the overridden hooks are looked
up once per epoch and called in Lightning's order, with the same arguments. A checkpoint holds the same loop state.
Lightning's own loop runs all other kinds of steps (see `find_unsupported`), and those of a user's module.
"""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, Strategy

from train_anywhere.data.torch.user_loader import raised_by_row
from train_anywhere.errors import user_error
from train_anywhere.training.lightning.batches import protect_workers
from train_anywhere.training.lightning.hardware import BFloat16
from train_anywhere.training.lightning.loop.private import (
    _block_parallel_sync_behavior,
    _DataFetcher,
    _DataLoaderIterDataFetcher,
    _TrainingEpochLoop,
)

HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
"""Hooks of callbacks and of the module in a step."""


class FastEpochLoop(_TrainingEpochLoop):
    """The loop over the batches of one epoch.

    `validates` returns whether a validation follows a number of batches (None: all) of a task of this project. A user's module has
    none: Lightning decides, and its own loop runs each step, as with `fast=False` (`trainer.fast_step`).

    Attributes:
        mid_epoch: whether a validation is running after which the epoch continues.
    """

    def __init__(
        self, trainer: pl.Trainer, validates: Callable[[int | None], bool] | None, fast: bool = True
    ) -> None:
        super().__init__(trainer)
        self._validates, self._allowed, self.mid_epoch = validates, fast and validates is not None, False
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self._after: list[Any] = []
        # of the module; setting them here avoids a search in its parameters
        self._attributes: dict[str, Any] = {}
        self._fast = self._moves = False

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Look up the overridden hooks at the start of an epoch."""
        super().on_run_start(data_fetcher)
        trainer = self.trainer
        self._attributes = vars(trainer.lightning_module)
        self._fast = self._allowed and find_unsupported(trainer) is None
        self._hooks = {name: find_hooks(trainer, name) for name in HOOKS}
        self._after = [c for c in trainer.callbacks if hasattr(c, "after_batch")]
        self._moves = trainer.strategy.root_device.type != "cpu"

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train on one batch. Raises StopIteration if none is left."""
        if self.restarting:  # type: ignore[has-type]
            if self.val_loop.restarted_mid_evaluation:
                return  # `on_advance_end` runs the validation before or in which the run was stopped
            self.restarting = False
        if not self._fast:
            self.trainer.fit_loop.reads_batch()
            super().advance(data_fetcher)
            return
        self.val_loop.restarting = False
        batch, _, _ = next(data_fetcher)
        index, progress, trainer = self.batch_idx + 1, self.batch_progress, self.trainer
        progress.is_last_batch = data_fetcher.done
        if self._moves:
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        progress.increment_ready()
        trainer._logger_connector.on_batch_start(batch)
        self._call("on_train_batch_start", batch, index)
        trainer.strategy.on_train_batch_start(batch, index)
        progress.increment_started()
        outputs = self._train(batch, index)
        progress.increment_processed()
        if trainer.lr_scheduler_configs:
            self.update_lr_schedulers("step", update_plateau_schedulers=False)
            if self._num_ready_batches_reached():
                self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        self._call("on_train_batch_end", outputs, batch, index)
        logged = bool(self._results) or trainer.world_size > 1  # perhaps by another rank
        if logged:
            trainer._logger_connector.on_batch_end()
        progress.increment_completed()
        if logged:
            trainer._logger_connector.update_train_step_metrics()

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        """Call `after_batch` of callbacks after all hooks of a batch, then validate if due.

        After a validation within the epoch, call `validation_over` of callbacks, unless the run ends with it.
        """
        trainer = self.trainer
        for callback in self._after:
            callback.after_batch(trainer, self.batch_idx)
        over = self._num_ready_batches_reached() or trainer.should_stop
        validates = self.validation_follows()
        self.mid_epoch = not over and validates
        for callback in trainer.callbacks if validates else ():
            if hasattr(callback, "before_validation"):
                callback.before_validation(trainer)
        if self.mid_epoch:
            self._validate_mid_epoch(data_fetcher)
        elif over or trainer.lr_scheduler_configs or not self._fast:
            super().on_advance_end(data_fetcher)
        elif not self._should_accumulate():
            self._batches_that_stepped += 1

    def validation_follows(self) -> bool:
        """Return whether a validation follows the batch just trained."""
        if self._validates is None:
            fetcher = self.trainer.fit_loop._data_fetcher
            assert fetcher is not None
            return super()._should_check_val_fx(fetcher)
        if self._num_ready_batches_reached():
            return self._validates(None)
        waits = self._should_accumulate() and not self.trainer.should_stop
        return not waits and self._validates(self.batch_idx + 1)

    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        return self.validation_follows()

    def _validate_mid_epoch(self, data_fetcher: _DataFetcher) -> None:
        trainer: Any = self.trainer
        super().on_advance_end(data_fetcher)
        for callback in trainer.callbacks if not trainer.should_stop else ():
            if hasattr(callback, "validation_over"):
                callback.validation_over(trainer, trainer.lightning_module)
        if not trainer.should_stop:
            trainer.validated_weights.forget()
        self.mid_epoch = False

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the ranks agree to stop when they reduce their metrics."""

    def _train(self, batch: Any, index: int) -> dict[str, Any]:
        """Run forward and backward pass, and the optimizer step if it is due. Return the loss."""
        optimizer, outputs = self.trainer.strategy.optimizers[0], dict[str, Any]()

        def closure() -> torch.Tensor:  # an optimizer may call this more than once
            outputs["loss"] = self._compute_gradients(batch, index, optimizer)
            return outputs["loss"]

        if self._should_accumulate():
            with _block_parallel_sync_behavior(self.trainer.strategy, block=True):
                closure()
        else:
            stepped = self.automatic_optimization.optim_progress.optimizer.step
            stepped.increment_ready()
            optimizer.step(lambda: self._before_step(closure(), optimizer))
            stepped.increment_completed()
        return outputs

    def _compute_gradients(self, batch: Any, index: int, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Run forward and backward pass, and return the detached loss."""
        trainer, accumulate = self.trainer, self.trainer.accumulate_grad_batches
        with torch.enable_grad():
            loss = self._call_as_hook("training_step", trainer.strategy.training_step, batch, index)
            if accumulate > 1:
                loss = loss / accumulate
            if index % accumulate == 0:
                self._zero_gradients(optimizer)
            self._backward(loss)
        return loss.detach()

    def _zero_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Clear the gradients for a new step."""
        zeroed = self.automatic_optimization.optim_progress.optimizer.zero_grad
        zeroed.increment_ready()
        self._call("on_before_zero_grad", optimizer)
        zeroed.increment_started()
        optimizer.zero_grad()
        zeroed.increment_completed()

    def _backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, during or after which the strategy averages the gradients."""
        strategy = self.trainer.strategy
        strategy.pre_backward(loss)
        self._call("on_before_backward", loss)
        loss.backward()
        self._call("on_after_backward")
        strategy.post_backward(loss.detach())

    def _before_step(self, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Call the hooks before an optimizer step and clip the gradients. Return the loss."""
        self._call("on_before_optimizer_step", optimizer)
        trainer = self.trainer
        if trainer.gradient_clip_val:
            trainer.precision_plugin._clip_gradients(
                trainer.lightning_module,
                optimizer,
                trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )
        return loss

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a hook of the callbacks, then of the module."""
        for hook in self._hooks[name]:
            self._call_as_hook(name, hook, *arguments)

    def _call_as_hook(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as the hook of this name, which decides how `self.log` works in it."""
        attributes = self._attributes
        before, attributes["_current_fx_name"] = attributes["_current_fx_name"], name
        result = function(*arguments)
        attributes["_current_fx_name"] = before
        return result


def refuse_user_stop_iteration(owner: Any, *names: str) -> None:
    """Turn a StopIteration of user code into an error: Lightning would end the epoch.

    A step that takes a `dataloader_iter` ends the epoch in this way.
    """
    for name in names:
        setattr(owner, name, partial(_call_without_user_stop, owner, getattr(owner, name)))


def _call_without_user_stop(owner: Any, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except StopIteration as end:
        loop = owner if hasattr(owner, "_data_fetcher") else owner.trainer.fit_loop
        if isinstance(loop._data_fetcher, _DataLoaderIterDataFetcher):
            raise
        frames = [frame.f_code for frame, _ in traceback.walk_tb(end.__traceback__)]
        # on_train_batch_start has returned -1
        own = Path(frames[-1].co_filename).name == "training_epoch_loop.py"
        # user_data.py: the loader of another rank has ended
        fetched = any(Path(code.co_filename).name in ("fetchers.py", "user_data.py") for code in frames)
        if own or (fetched and not raised_by_row(end)):
            raise
        raise user_error(end) from end


def refuse_row_stop_iteration(loop: Any) -> None:
    """Turn a StopIteration of a row into an error in an evaluation loop."""
    loop.reset = partial(_check_fetcher, loop, loop.reset)


def _check_fetcher(loop: Any, reset: Callable[[], None]) -> None:
    protect_workers(loop._combined_loader.flattened)
    reset()
    kind: Any = type(loop._data_fetcher)

    def read(fetcher: Any) -> Any:
        try:
            return kind.__next__(fetcher)
        except StopIteration as end:
            if raised_by_row(end):
                raise user_error(end) from end
            raise

    loop._data_fetcher.__class__ = type(kind.__name__, (kind,), {"__next__": read})


def find_unsupported(trainer: pl.Trainer) -> str | None:
    """Return why Lightning's own loop must run the steps, or None if the fast loop can."""
    strategy, precision = trainer.strategy, trainer.precision_plugin
    steps = (Strategy.optimizer_step, DDPStrategy.optimizer_step)
    if not isinstance(trainer.profiler, PassThroughProfiler):
        return "a profiler is used"
    if (
        type(precision) not in (Precision, MixedPrecision, BFloat16)
        or getattr(precision, "scaler", None) is not None
    ):
        return "the precision plugin scales the loss"
    if type(strategy).optimizer_step not in steps or getattr(strategy, "_model_averager", None) is not None:
        return "the strategy has its own optimizer_step"
    if type(strategy).backward is not Strategy.backward or strategy.handles_gradient_accumulation:
        return "the strategy has its own backward pass"
    return None


def find_hooks(trainer: pl.Trainer, name: str) -> list[Callable[..., Any]]:
    """Return the overridden hooks of this name, of the callbacks first, then of the module."""
    module = trainer.lightning_module
    callbacks: list[pl.Callback] = trainer.callbacks
    found: list[Callable[..., Any]] = [
        partial(getattr(one, name), trainer, module) for one in callbacks if overrides(one, name)
    ]
    return [*found, getattr(module, name)] if overrides(module, name) else found


def overrides(owner: Any, name: str) -> bool:
    """Return whether an owner of hooks overrides one, in its class or on the object."""
    bases = (pl.LightningModule, pl.Callback, pl.LightningDataModule)
    base = next(b for b in bases if isinstance(owner, b))
    return getattr(getattr(owner, name), "__func__", None) is not getattr(base, name)
