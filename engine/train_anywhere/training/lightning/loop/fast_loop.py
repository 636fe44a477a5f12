"""Lightning's loop over the batches of an epoch, which for an ordinary step calls what somebody has overridden, and nothing else.

Lightning's own calls some thirty hooks of each callback and of the module in every step, each within a profiler's context, whether
anybody has written one or not; that, and not the training, is most of what its Trainer adds to a step (engine/benchmarks/step.py). Here
the hooks that were overridden are looked up once an epoch. They are called in Lightning's order, with the same arguments, and what a
checkpoint holds of the loop is the same. A step that is anything but ordinary is left to Lightning: see `unusual`.
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

from train_anywhere.errors import ConfigError, user_error
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
"""Of callbacks and of the module, in a step."""

OF_TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of the module, or of a LightningDataModule, around the batch's way to the device."""


class FastEpochLoop(_TrainingEpochLoop):
    """One epoch.

    Args:
        validates: whether the epoch that is ending has a validation.
        fast: `trainer.fast_step`; without it each step is left to Lightning.
    """

    def __init__(self, trainer: pl.Trainer, validates: Callable[[], bool], fast: bool = True) -> None:
        super().__init__(trainer)
        self._validates, self._wanted = validates, fast
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self._after: list[Any] = []
        self._attributes: dict[str, Any] = {}  # of the module, set without a search in its parameters
        self._module: Any = None
        self._fast = self._moves = self._takes_index = self._zeroes = self._clips = False

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """An epoch begins: look up what is overridden."""
        super().on_run_start(data_fetcher)
        trainer, module = self.trainer, self.trainer.lightning_module
        self._module, self._attributes = module, vars(module)
        self._zeroes = overrides(module, "optimizer_zero_grad")
        self._clips = bool(trainer.gradient_clip_val) or overrides(module, "configure_gradient_clipping")
        self._fast = (
            self._wanted
            and not isinstance(data_fetcher, _DataLoaderIterDataFetcher)
            and unusual(trainer) is None
        )
        self._hooks = {name: overridden_hooks(trainer, name) for name in HOOKS}
        self._after = [c for c in trainer.callbacks if hasattr(c, "after_batch")]  # type: ignore[attr-defined]
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        owners = [owner for owner in (module, trainer.datamodule) if owner is not None]
        self._moves = trainer.strategy.root_device.type != "cpu" or any(
            overrides(owner, name) for owner in owners for name in OF_TRANSFER
        )

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """One batch. Raises StopIteration: there is none left, or the module wants no more of this epoch."""
        if self.restarting or not self._fast:
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
        """After a batch and all its hooks: `after_batch` of callbacks, a validation and all else that may be due at an epoch's end."""
        trainer = self.trainer
        for callback in self._after:
            callback.after_batch(trainer, self.batch_idx)
        due = self._num_ready_batches_reached() or trainer.should_stop or trainer.lr_scheduler_configs
        if due or self._skip_next_val or not self._fast:
            super().on_advance_end(data_fetcher)
        elif not self._should_accumulate():
            self._batches_that_stepped += 1

    def _should_check_val_epoch(self) -> bool:
        return self._validates()

    def _broadcast_sigterm_tensor(self) -> None:
        """Nothing: the ranks agree to stop when they reduce their metrics anyway (`callbacks.MetricsCallback`)."""

    def _on_device(self, batch: Any) -> Any:
        """A batch of the loader, where the module wants it."""
        if not self._moves:
            return batch
        batch = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def _train(self, batch: Any, index: int) -> dict[str, Any]:
        """Forward and backward pass, and the optimizer's step if enough batches are accumulated; returns what the module returned."""
        optimizer, made = self.trainer.strategy.optimizers[0], dict[str, Any]()

        def closure() -> torch.Tensor | None:
            made.clear()  # an optimizer may call it more than once
            made.update(self._gradients(batch, index, optimizer))
            return made.get("loss")

        if self._should_accumulate():
            with _block_parallel_sync_behavior(self.trainer.strategy, block=True):
                closure()
        else:
            stepped = self.automatic_optimization.optim_progress.optimizer.step
            stepped.increment_ready()
            optimizer.step(lambda: self._ready(closure(), optimizer))
            stepped.increment_completed()
        return made

    def _gradients(self, batch: Any, index: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Forward and backward pass; returns what the module returned, its loss detached."""
        trainer = self.trainer
        arguments = (batch, index) if self._takes_index else (batch,)
        with torch.enable_grad():
            output = self._within("training_step", trainer.strategy.training_step, *arguments)
            if output is None and trainer.world_size > 1:
                raise ConfigError(
                    f"training_step of {type(trainer.lightning_module).__name__} returned None, and a rank can't skip a step that the "
                    "others make; return a loss in each step, such as 0 * loss."
                )
            loss, made = loss_of(output, trainer.accumulate_grad_batches)
            if index % trainer.accumulate_grad_batches == 0:
                self._zero(index, optimizer)
            if loss is not None:
                self._backward(loss)
        return made

    def _zero(self, index: int, optimizer: torch.optim.Optimizer) -> None:
        """A new step's gradients begin at nothing."""
        zeroed = self.automatic_optimization.optim_progress.optimizer.zero_grad
        zeroed.increment_ready()
        self._call("on_before_zero_grad", optimizer)
        zeroed.increment_started()
        if self._zeroes:
            epoch = self.trainer.current_epoch
            self._within("optimizer_zero_grad", self._module.optimizer_zero_grad, epoch, index, optimizer)
        else:
            optimizer.zero_grad()
        zeroed.increment_completed()

    def _backward(self, loss: torch.Tensor) -> None:
        """The strategy averages the gradients over the ranks meanwhile, or afterwards."""
        strategy = self.trainer.strategy
        strategy.pre_backward(loss)
        self._call("on_before_backward", loss)
        self._module.backward(loss)
        self._call("on_after_backward")
        strategy.post_backward(loss.detach())

    def _ready(self, loss: torch.Tensor | None, optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        """The gradients are there; the optimizer is about to use them."""
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
        """A hook of the callbacks, then of the module; returns what the module's returned."""
        answer = None
        for hook in self._hooks[name]:
            answer = self._within(name, hook, *arguments)
        return answer

    def _within(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it as the hook of this name: what `self.log` may do depends on it."""
        attributes = self._attributes
        before, attributes["_current_fx_name"] = attributes["_current_fx_name"], name
        answer = function(*arguments)
        attributes["_current_fx_name"] = before
        return answer


def loss_of(output: Any, accumulate: int) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """What to go backward from, and what callbacks get.

    Lightning would divide by 1, and copy: with a small network two of the dearer operations of a step.
    """
    if accumulate == 1 and isinstance(output, torch.Tensor):
        return output, {"loss": output.detach()}
    result = ClosureResult.from_training_step_output(output, accumulate)
    return result.closure_loss, result.asdict() if result.loss is not None else {}


def refuse_user_ends(owner: Any, *names: str) -> None:
    """Make a StopIteration that user code raises in these methods of a loop an error: Lightning ends the epoch without a message."""
    for name in names:
        setattr(owner, name, partial(_without_user_ends, getattr(owner, name)))


def _without_user_ends(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except StopIteration as end:
        frames = [frame.f_code for frame, _ in traceback.walk_tb(end.__traceback__)]
        own = Path(frames[-1].co_filename).name in ("training_epoch_loop.py", "fast_loop.py")  # -1 of a hook
        if own or any(Path(code.co_filename).name == "fetchers.py" for code in frames):
            raise
        raise user_error(end) from end


def unusual(trainer: pl.Trainer) -> str | None:
    """Why the steps of this training are left to Lightning's own loop; None: they are ordinary."""
    module, strategy, precision = trainer.lightning_module, trainer.strategy, trainer.precision_plugin
    steps = (Strategy.optimizer_step, DDPStrategy.optimizer_step)
    if not module.automatic_optimization:
        return "the module steps by hand"
    if len(trainer.optimizers) != 1:
        return "it has not one optimizer"
    if overrides(module, "optimizer_step"):
        return "the module steps its optimizer itself"
    if not isinstance(trainer.profiler, PassThroughProfiler):
        return "a profiler measures its parts"
    if (
        type(precision) not in (Precision, MixedPrecision, BFloat16)
        or getattr(precision, "scaler", None) is not None
    ):
        return "its precision scales the loss"
    if type(strategy).optimizer_step not in steps or getattr(strategy, "_model_averager", None) is not None:
        return "its strategy steps in its own way"
    if type(strategy).backward is not Strategy.backward or strategy.handles_gradient_accumulation:
        return "its strategy goes backward in its own way"
    return None


def overridden_hooks(trainer: pl.Trainer, name: str) -> list[Callable[..., Any]]:
    """Those of the callbacks, then the module's."""
    module = trainer.lightning_module
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]

    def bound(callback: pl.Callback) -> Callable[..., Any]:
        hook = getattr(callback, name)
        return lambda *arguments: silent(hook(trainer, module, *arguments))

    found = [bound(callback) for callback in callbacks if overrides(callback, name)]
    return [*found, getattr(module, name)] if overrides(module, name) else found


def silent(answer: Any) -> None:
    """What a callback returns means nothing."""


def overrides(owner: Any, name: str) -> bool:
    """Whether a hook of a callback, module or data module is somebody's own: of its class, or set on the object itself."""
    bases = (pl.LightningModule, pl.Callback, pl.LightningDataModule)
    base = next(b for b in bases if isinstance(owner, b))
    return getattr(getattr(owner, name), "__func__", None) is not getattr(base, name)
