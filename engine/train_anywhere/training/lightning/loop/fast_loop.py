"""Lightning's loop over the batches of an epoch, changed so that a usual step calls only overridden hooks.

Lightning calls about thirty hooks of each callback and of the module in every step, each in a profiler context, even if none is
overridden. This is most of the time that its Trainer adds to a step (engine/benchmarks/step.py). Here the overridden hooks are looked
up once per epoch and called in Lightning's order, with the same arguments. A checkpoint holds the same loop state.
Lightning's own loop runs all other kinds of steps: see `find_unsupported`.
"""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from train_anywhere.data.torch.user_loader import raised_by_row
from train_anywhere.errors import ConfigError, user_error
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

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of the module, or of a LightningDataModule, that move a batch to the device."""


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
        self._module: Any = None
        self._fast = self._moves = self._takes_index = self._zeroes = self._clips = False

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Look up the overridden hooks at the start of an epoch."""
        super().on_run_start(data_fetcher)
        trainer, module = self.trainer, self.trainer.lightning_module
        self._module, self._attributes = module, vars(module)
        self._zeroes = overrides(module, "optimizer_zero_grad")
        self._clips = bool(trainer.gradient_clip_val) or overrides(module, "configure_gradient_clipping")
        self._fast = (
            self._allowed
            and not isinstance(data_fetcher, _DataLoaderIterDataFetcher)
            and find_unsupported(trainer) is None
        )
        self._hooks = {name: find_hooks(trainer, name) for name in HOOKS}
        self._after = [c for c in trainer.callbacks if hasattr(c, "after_batch")]  # type: ignore[attr-defined]
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        owners = [owner for owner in (module, trainer.datamodule) if owner is not None]
        self._moves = trainer.strategy.root_device.type != "cpu" or any(
            overrides(owner, name) for owner in owners for name in TRANSFER_HOOKS
        )

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train on one batch. Raises StopIteration if none is left, or if the module skips the rest of this epoch."""
        if self.restarting:  # type: ignore[has-type]
            if self.val_loop.restarted_mid_evaluation:
                return  # `on_advance_end` runs the validation before or in which the run was stopped
            self.restarting = False
        if not self._fast:
            self.trainer.fit_loop.reads_batch()  # type: ignore[attr-defined]
            super().advance(data_fetcher)
            return
        self.val_loop.restarting = False
        batch, _, _ = next(data_fetcher)
        index, progress, trainer = self.batch_idx + 1, self.batch_progress, self.trainer
        progress.is_last_batch = data_fetcher.done
        batch = self._on_device(batch)
        progress.increment_ready()
        trainer._logger_connector.on_batch_start(batch)
        outputs: dict[str, Any] | None = None
        over = batch is not None and self._call("on_train_batch_start", batch, index) == -1
        if over:
            progress.increment_by(0, is_last_batch=True)
        elif batch is not None:  # a loader may give None, for nothing to train on
            trainer.strategy.on_train_batch_start(batch, index)
            progress.increment_started()
            outputs = self._train(batch, index)
        progress.increment_processed()
        if trainer.lr_scheduler_configs:
            self.update_lr_schedulers("step", update_plateau_schedulers=False)
            if self._num_ready_batches_reached():
                self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if over:
            raise StopIteration
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
        for callback in trainer.callbacks if validates else ():  # type: ignore[attr-defined]
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
            trainer.validated_weights.validated = {}
        self.mid_epoch = False

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the ranks agree to stop when they reduce their metrics (`callbacks.MetricsCallback`)."""

    def _on_device(self, batch: Any) -> Any:
        """Return a batch of the loader on the module's device."""
        if not self._moves:
            return batch
        batch = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _train(self, batch: Any, index: int) -> dict[str, Any]:
        """Run forward and backward pass, and the optimizer step if enough batches are accumulated; return the module's outputs."""
        optimizer, outputs = self.trainer.strategy.optimizers[0], dict[str, Any]()

        def closure() -> torch.Tensor | None:
            outputs.clear()  # an optimizer may call this more than once
            outputs.update(self._compute_gradients(batch, index, optimizer))
            return outputs.get("loss")

        if self._should_accumulate():
            with _block_parallel_sync_behavior(self.trainer.strategy, block=True):
                closure()
        else:
            stepped = self.automatic_optimization.optim_progress.optimizer.step
            stepped.increment_ready()
            optimizer.step(lambda: self._before_step(closure(), optimizer))
            stepped.increment_completed()
        return outputs

    def _compute_gradients(self, batch: Any, index: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Run forward and backward pass; return the module's outputs with the loss detached."""
        trainer = self.trainer
        arguments = (batch, index) if self._takes_index else (batch,)
        with torch.enable_grad():
            output = self._call_as_hook("training_step", trainer.strategy.training_step, *arguments)
            if output is None and trainer.world_size > 1:
                raise ConfigError(
                    f"training_step of {type(trainer.lightning_module).__name__} returned None, and one rank can't skip a step that the "
                    "others run; return a loss in each step, such as 0 * loss."
                )
            loss, outputs = split_output(output, trainer.accumulate_grad_batches)
            if index % trainer.accumulate_grad_batches == 0:
                self._zero_gradients(index, optimizer)
            if loss is not None:
                self._backward(loss)
        return outputs

    def _zero_gradients(self, index: int, optimizer: torch.optim.Optimizer) -> None:
        """Clear the gradients for a new step."""
        zeroed = self.automatic_optimization.optim_progress.optimizer.zero_grad
        zeroed.increment_ready()
        self._call("on_before_zero_grad", optimizer)
        zeroed.increment_started()
        if self._zeroes:
            epoch = self.trainer.current_epoch
            self._call_as_hook(
                "optimizer_zero_grad", self._module.optimizer_zero_grad, epoch, index, optimizer
            )
        else:
            optimizer.zero_grad()
        zeroed.increment_completed()

    def _backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; the strategy averages the gradients over the ranks during or after it."""
        strategy = self.trainer.strategy
        strategy.pre_backward(loss)
        self._call("on_before_backward", loss)
        self._module.backward(loss)
        self._call("on_after_backward")
        strategy.post_backward(loss.detach())

    def _before_step(
        self, loss: torch.Tensor | None, optimizer: torch.optim.Optimizer
    ) -> torch.Tensor | None:
        """Call the hooks before an optimizer step and clip the gradients; return the loss."""
        self._call("on_before_optimizer_step", optimizer)
        trainer = self.trainer
        if self._clips:
            trainer.precision_plugin._clip_gradients(
                self._module,
                optimizer,
                trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )
        return loss

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a hook of the callbacks, then of the module; return the result of the module's hook."""
        result = None
        for hook in self._hooks[name]:
            result = self._call_as_hook(name, hook, *arguments)
        return result

    def _call_as_hook(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as the hook of this name, which decides how `self.log` works in it."""
        attributes = self._attributes
        before, attributes["_current_fx_name"] = attributes["_current_fx_name"], name
        result = function(*arguments)
        attributes["_current_fx_name"] = before
        return result


def split_output(output: Any, accumulate: int) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Return the loss for the backward pass, and the outputs for callbacks.

    Without accumulation Lightning would still divide by 1 and copy, two of the more expensive operations with a small network.
    """
    if accumulate == 1 and isinstance(output, torch.Tensor):
        return output, {"loss": output.detach()}
    result = ClosureResult.from_training_step_output(output, accumulate)
    return result.closure_loss, result.asdict() if result.loss is not None else {}


def refuse_user_stop_iteration(owner: Any, *names: str) -> None:
    """Turn a StopIteration of user code in these methods of a loop into an error: Lightning would silently end the epoch.

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
        own = Path(frames[-1].co_filename).name in ("training_epoch_loop.py", "fast_loop.py")
        fetched = any(Path(code.co_filename).name == "fetchers.py" for code in frames)
        if own or (fetched and not raised_by_row(end)):
            raise
        raise user_error(end) from end


def refuse_row_stop_iteration(loop: Any) -> None:
    """Turn a StopIteration of a row into an error in an evaluation loop, which would end as if the data had ended."""
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
    """Return why Lightning's own loop must run the steps of this training, or None if the fast loop can."""
    module, strategy, precision = trainer.lightning_module, trainer.strategy, trainer.precision_plugin
    steps = (Strategy.optimizer_step, DDPStrategy.optimizer_step)
    if not module.automatic_optimization:
        return "the module uses manual optimization"
    if len(trainer.optimizers) != 1:
        return "the number of optimizers is not 1"
    if overrides(module, "optimizer_step"):
        return "the module overrides optimizer_step"
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
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]

    def bound(callback: pl.Callback) -> Callable[..., Any]:
        hook = getattr(callback, name)
        return lambda *arguments: ignore(hook(trainer, module, *arguments))

    found = [bound(callback) for callback in callbacks if overrides(callback, name)]
    return [*found, getattr(module, name)] if overrides(module, name) else found


def ignore(result: Any) -> None:
    """Drop the result of a callback's hook, as Lightning does."""


def overrides(owner: Any, name: str) -> bool:
    """Return whether a callback, module or data module overrides a hook, in its class or on the object itself."""
    bases = (pl.LightningModule, pl.Callback, pl.LightningDataModule)
    base = next(b for b in bases if isinstance(owner, b))
    return getattr(getattr(owner, name), "__func__", None) is not getattr(base, name)
