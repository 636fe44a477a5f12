"""Lightning's Trainer, reduced to its loop: what else it would print, save or send is ours, or left out."""

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from src.config.schema import Config
from src.distributed.topology import Topology
from src.training.lightning.position import validation_due
from src.training.lightning.restoring import Restorer
from src.training.plan import Plan


class NoSignals(_SignalConnector):
    """Leaves the signals to `src.training.stop`; Lightning's handlers would requeue jobs and exit by themselves."""

    def register_signal_handlers(self) -> None:
        """Does nothing."""


class Trainer(pl.Trainer):
    """A Trainer without signal handlers, and without the exchange of a signal flag at every step.

    Lightning 2.6 broadcasts that flag before each batch and waits for it (`_broadcast_sigterm_tensor`); here
    the ranks agree to stop where they reduce their metrics anyway (`callbacks.Reporter`).
    """

    def __init__(self, config: Config, plan: Plan, **options: Any) -> None:
        super().__init__(**options)
        self._signal_connector = NoSignals(self)
        self._checkpoint_connector = Restorer(self)
        loop = self.fit_loop.epoch_loop
        loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
        loop._should_check_val_epoch = lambda: validation_due(  # type: ignore[method-assign]
            config.trainer, plan, self.current_epoch, self.global_step
        )


def make_trainer(
    config: Config, plan: Plan, topology: Topology, device: torch.device, strategy: Strategy
) -> Trainer:
    """The Trainer of one rank; `run.attach` adds callbacks and loggers. Its limits come from the plan."""
    silence()
    return Trainer(
        config,
        plan,
        accelerator=device.type,
        devices=1 if device.type == "cpu" else [device.index],
        num_nodes=topology.nodes,
        strategy=strategy,
        precision="32-true" if config.trainer.precision == "32" else config.trainer.precision,
        max_epochs=plan.max_epochs,
        limit_train_batches=plan.train_batches,
        limit_val_batches=plan.val_batches,
        limit_test_batches=plan.test_batches,
        accumulate_grad_batches=plan.accumulate,
        gradient_clip_val=config.trainer.gradient_clip_val,
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
    # torch compares strides of dimensions of size 1, where they mean nothing: grey images in the first convolution
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
