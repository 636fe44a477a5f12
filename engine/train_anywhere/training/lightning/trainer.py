"""Lightning's Trainer without its own checkpoint files and console output."""

import logging
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.strategies import Strategy

from train_anywhere.config.schema import Config
from train_anywhere.config.schema import Trainer as TrainerConfig
from train_anywhere.distributed.topology import Topology
from train_anywhere.training.early_stopping import describe_early_end
from train_anywhere.training.lightning.dropin.trainable import refuse_uneven_batches
from train_anywhere.training.lightning.dropin.user_code import (
    call_without_user_stop,
    refuse_user_stop_iteration,
)
from train_anywhere.training.lightning.dropin.validated_weights import ValidatedWeights
from train_anywhere.training.lightning.dropin.visible import Callbacks, caller
from train_anywhere.training.lightning.hardware import precision_arguments, use_tf32
from train_anywhere.training.lightning.private import skip_signal_exchange, wrap_evaluation_step
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.plan import Plan


class Trainer(pl.Trainer):
    """A Trainer with this project's loops and values.

    Args:
        settings: the section `trainer` of the configuration, kept as an attribute.
        **options: arguments of Lightning's Trainer.

    Attributes:
        steps_done: optimizer steps of the run so far. With several optimizers, Lightning's `global_step` adds up their steps.
        validated_weights: the callback that keeps the weights of the newest validation for the checkpoint.
        plan: the size of the run; None before `apply_plan`.
        stopped_by: class of the callback or module that has set `should_stop`; None if nobody did, or this project.
        skips: whether a batch hook of the module has ended an epoch early.
    """

    stopped_by: str | None = None
    skips = False
    _should_stop = False
    _callbacks = Callbacks()

    def __init__(
        self,
        settings: TrainerConfig,
        ranks_per_node: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.settings = settings
        self.steps_done, self.validated_weights = 0, ValidatedWeights()
        self.callbacks += [self.validated_weights]
        self._ranks_per_node = ranks_per_node
        self._waiting: list[Callable[[float], None]] = []
        skip_signal_exchange(self)
        refuse_user_stop_iteration(self.fit_loop, "on_advance_start", "advance", "on_advance_end")
        refuse_user_stop_iteration(self.fit_loop.epoch_loop, "advance", "on_advance_end")
        refuse_user_stop_iteration(self.fit_loop.epoch_loop.manual_optimization, "advance")
        evaluations = (self.fit_loop.epoch_loop.val_loop, self.validate_loop, self.test_loop)
        for loop in evaluations:
            wrap_evaluation_step(loop, partial(partial, call_without_user_stop, loop))
        self.plan: Plan | None = None

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks, of which user code sees its own."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, chosen: Iterable[pl.Callback]) -> None:
        self._callbacks = self._callbacks.replaced(chosen, caller())

    @property
    def device_ids(self) -> list[int]:
        """Indices of the devices of this node, one for each rank."""
        return super().device_ids if self.world_size == 1 else [*range(self._ranks_per_node)]

    @property
    def should_stop(self) -> bool:
        """Whether training ends after this step."""
        return self._should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value != self._should_stop:
            self.stopped_by = find_user_object(caller()) if value else None
        self._should_stop = value

    @property
    def early_end(self) -> str | None:
        """A line about who ended the training, if user code did before its last step."""
        ends = self.stopped_by or self.skips
        if not ends or not self.plan or self.steps_done >= self.plan.total_steps:
            return None
        skipping = f"on_train_batch_start of {type(self.lightning_module).__name__} (-1)"
        line = describe_early_end(self.stopped_by or skipping, self.steps_done, self.plan.total_steps)
        return line if self.plan.steps_known else line.rpartition(" of ")[0]

    def use_folder(self, folder: Path) -> None:
        """Use the run folder as `default_root_dir`."""
        self._default_root_dir = str(folder)

    def resume_at(self, step: int) -> None:
        """Continue after the optimizer steps of earlier attempts."""
        self.steps_done = step

    def count_step(self) -> int:
        """Count an optimizer step, and return the number of steps done."""
        self.steps_done += 1
        return self.steps_done

    def note_skipped_batches(self) -> None:
        """Note whether a batch hook of the module has ended the epoch early."""
        done = self.fit_loop.epoch_loop.batch_progress.current
        if not self.should_stop:
            self.skips |= done.completed < done.ready

    def apply_plan(self, plan: Plan) -> None:
        """Set Lightning's own limits, as the arguments of its constructor do, for a run of this size."""
        self.plan = plan
        t, overfit, loop = self.settings, self.settings.overfit_batches, self.fit_loop
        fast, every = t.fast_dev_run, t.val_check_interval
        loop.max_epochs, loop.min_epochs = 1 if fast else t.max_epochs, None if fast else t.min_epochs
        self.fast_dev_run, loop.epoch_loop.max_steps = fast, 1 if fast else t.max_steps or -1
        loop.epoch_loop.min_steps = None if fast else t.min_steps
        own: Any = self
        limit, parts = overfit or t.limit_train_batches, plan.accumulate // t.accumulate_grad_batches
        own.limit_train_batches = 1 if fast else limit * parts if isinstance(limit, int) else limit
        own.limit_val_batches = 1 if fast else overfit or t.limit_val_batches
        own.limit_test_batches = 1 if fast else t.limit_test_batches
        self.overfit_batches = overfit or 0.0
        self.accumulate_grad_batches = plan.accumulate
        self.check_val_every_n_epoch = t.check_val_every_n_epoch
        batches: Any = every * plan.accumulate if isinstance(every, int) else every
        self.val_check_interval = 1.0 if fast else batches  # type: ignore[assignment]

    def when_opened(self, call: Callable[[float], None]) -> None:
        """Call a function once Lightning has opened the training loaders.

        Its argument is the number of training batches of an epoch, infinite if it is not known.
        """
        self._waiting.append(call)

    def loaders_opened(self) -> None:
        """Call the functions of `when_opened`. All ranks call this.

        Raises:
            DataError: the ranks have different numbers of batches.
        """
        if self.train_dataloader is not None and self._waiting:
            refuse_uneven_batches(self)
            calls, self._waiting = self._waiting, []
            for call in calls:
                call(self.num_training_batches)


def find_user_object(frame: FrameType | None) -> str | None:
    """Return the class of the user's callback or module that runs in a frame, or None."""
    if frame is None or str(frame.f_globals.get("__name__")).startswith("train_anywhere."):
        return None
    name = frame.f_code.co_name
    while frame:
        if isinstance(owner := frame.f_locals.get("self"), pl.Callback | pl.LightningModule):
            return type(owner).__name__
        frame = frame.f_back
    return name


def make_trainer(config: Config, topology: Topology, device: torch.device, strategy: Strategy) -> Trainer:
    """Return the Trainer of one rank, still without callbacks, loggers and limits."""
    silence_lightning()
    use_tf32(config.trainer.tf32)
    algorithm = config.trainer.gradient_clip_algorithm
    return Trainer(
        config.trainer,
        topology.local_world_size,
        accelerator=device.type,
        devices=[device.index] if device.type == "cuda" else 1,
        num_nodes=topology.nodes,
        strategy=strategy,
        **precision_arguments(config.trainer.precision, device),
        max_epochs=1,
        gradient_clip_val=config.trainer.gradient_clip_val,
        gradient_clip_algorithm=None if algorithm == "norm" else algorithm,  # as by default in Lightning
        deterministic=config.trainer.deterministic or None,
        sync_batchnorm=config.trainer.sync_batchnorm and topology.world_size > 1,
        log_every_n_steps=config.trainer.log_every_n_steps,
        logger=False,
        num_sanity_val_steps=0 if config.trainer.fast_dev_run else config.trainer.num_sanity_val_steps,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # fully_shard makes parameters anew at the first forward pass; in inference mode nothing could read them as weights
        # (https://github.com/pytorch/pytorch/issues/95957, for which Lightning does the same with its own strategy)
        **{
            "inference_mode": not isinstance(strategy, FullyShardedStrategy),
            "use_distributed_sampler": topology.world_size > 1,
            **config.trainer.extra,
        },
    )


def silence_lightning() -> None:
    """Hide the log lines and warnings of Lightning's Trainer and loops.

    Errors stay, and so do the lines of what the user has chosen: callbacks, such as LearningRateFinder, and a profiler.
    """

    def is_shown(record: logging.LogRecord) -> bool:  # Lightning logs all lines of rank 0 under one name
        return record.levelno >= logging.ERROR or Path(record.pathname).parent.name in ("callbacks", "tuner")

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("profilers", "callbacks", "tuner", "utilities.rank_zero"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.INFO)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(is_shown)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", module=r"lightning\.(?!pytorch\.(callbacks|tuner)\.)")
    # torch also compares strides of dimensions of size 1, such as a single input channel, where they have no effect
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
