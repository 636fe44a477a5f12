"""Lightning's Trainer without its own signal handling, checkpointing and console output."""

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.strategies import Strategy

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import interrupted, user_error
from train_anywhere.training.lightning.checkpoint.restoring import Restorer
from train_anywhere.training.lightning.dropin.connector import Connector
from train_anywhere.training.lightning.dropin.measured import OneModel
from train_anywhere.training.lightning.dropin.trained import FitLoop
from train_anywhere.training.lightning.hardware import computing_in, use_tf32
from train_anywhere.training.lightning.loop.fast_loop import FastEpochLoop, refuse_user_ends
from train_anywhere.training.lightning.loop.private import _SignalConnector, _TunerExitException
from train_anywhere.training.plan import Plan, validation_due


class NoSignals(_SignalConnector):
    """Leaves the signals to `train_anywhere.training.stop`; Lightning's handlers would requeue jobs and exit by themselves."""

    def register_signal_handlers(self) -> None:
        """None of Lightning's."""


class Trainer(pl.Trainer):
    """A Trainer without signal handlers, whose steps cost little more than their training: see `fast_loop`.

    Attributes:
        steps_done: batches trained / batches per step. Lightning's `global_step` counts the steps of every optimizer of a module.
    """

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(**options)
        self.steps_done, self.one_model = 0, OneModel()
        self.callbacks: list[pl.Callback] = [*self.callbacks, self.one_model]  # type: ignore[has-type]
        self._logger_connector = Connector(self)
        self._signal_connector = NoSignals(self)
        self._checkpoint_connector = Restorer(self, config.checkpoint.other_objects == "leave_out")
        self.fit_loop: FitLoop = FitLoop(self, max_epochs=1)
        self.fit_loop.epoch_loop = FastEpochLoop(
            self, lambda: self._validates(config), config.trainer.fast_step
        )
        refuse_user_ends(self.fit_loop, "on_advance_start", "advance", "on_advance_end")
        refuse_user_ends(self.fit_loop.epoch_loop, "advance", "on_advance_end")
        refuse_user_ends(self.fit_loop.epoch_loop.manual_optimization, "advance")
        for loop in (self.fit_loop.epoch_loop.val_loop, self.test_loop):
            refuse_user_ends(loop, "_evaluation_step")
        self.plan: Plan | None = None

    def _run(self, *arguments: Any, **named: Any) -> Any:
        """Run a loop. Lightning exits with code 1 at a KeyboardInterrupt, and 0 at the end of a tuning."""
        try:
            return super()._run(*arguments, **named)
        except (KeyboardInterrupt, _TunerExitException) as error:
            if isinstance(error, KeyboardInterrupt) and interrupted():
                raise
            raise user_error(error) from error

    def _validates(self, config: Config) -> bool:
        return self.plan is not None and validation_due(
            config.trainer, self.plan, self.current_epoch, self.steps_done
        )

    def follow(self, plan: Plan) -> None:
        """Train as long as the plan says. It is made when the ranks know each other: data may have to be prepared on one of them."""
        self.plan = plan
        self.fit_loop.max_epochs = plan.max_epochs
        self.limit_train_batches = plan.train_batches
        self.limit_val_batches = plan.val_batches
        self.limit_test_batches = plan.test_batches
        self.accumulate_grad_batches = plan.accumulate


def make_trainer(config: Config, topology: Topology, device: torch.device, strategy: Strategy) -> Trainer:
    """The Trainer of one rank; `run.attach` adds callbacks and loggers, and its limits come from the plan: `Trainer.follow`."""
    silence()
    use_tf32(config.trainer.tf32)
    return Trainer(
        config,
        accelerator=device.type,
        devices=[device.index] if device.type == "cuda" else 1,
        num_nodes=topology.nodes,
        strategy=strategy,
        **computing_in(config.trainer.precision, device),
        max_epochs=1,
        gradient_clip_val=config.trainer.gradient_clip_val,
        sync_batchnorm=config.trainer.sync_batchnorm and topology.world_size > 1,
        log_every_n_steps=config.trainer.log_every_n_steps,
        logger=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # our sampler knows the ranks
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def silence() -> None:
    """Keep Lightning's advice and announcements out of the output; errors still come through."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    # torch compares strides of dimensions of size 1, which mean nothing: one channel in the first convolution
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
