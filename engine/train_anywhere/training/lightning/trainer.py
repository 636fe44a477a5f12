"""Lightning's Trainer without its own checkpoint files and console output."""

import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.strategies import Strategy

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.training.lightning.hardware import precision_arguments
from train_anywhere.training.lightning.private import skip_signal_exchange
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.plan import batches_per_step, count_parts

SAME = ("fast_dev_run", "max_epochs", "limit_train_batches", "limit_val_batches", "limit_test_batches", "gradient_clip_val",
        "check_val_every_n_epoch", "log_every_n_steps", "num_sanity_val_steps")  # fmt: skip
"""Keys of `trainer` that Lightning has with the same meaning."""


def make_trainer(
    config: Config, topology: Topology, strategy: Strategy, folder: Path | None = None
) -> pl.Trainer:
    """Return the Trainer of one rank, still without callbacks and loggers; user code writes into `folder`."""
    silence_lightning()
    t, device = config.trainer, strategy.root_device
    if (
        torch.cuda.is_available()
    ):  # TF32 has 10 bits of mantissa, see https://docs.pytorch.org/docs/stable/notes/cuda.html
        torch.set_float32_matmul_precision("high" if t.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = t.tf32
    batches, every = batches_per_step(config), t.val_check_interval  # Lightning counts batches
    trainer = pl.Trainer(
        accelerator=device.type,
        devices=[device.index] if device.type == "cuda" else 1,
        num_nodes=topology.nodes,
        strategy=strategy,
        **precision_arguments(t.precision, device),
        **{name: getattr(t, name) for name in SAME},
        min_epochs=None if t.fast_dev_run else t.min_epochs,
        max_steps=t.max_steps or -1,
        min_steps=None if t.fast_dev_run else t.min_steps,
        overfit_batches=0.0 if t.fast_dev_run else t.overfit_batches or 0.0,
        accumulate_grad_batches=batches,
        val_check_interval=every * batches if isinstance(every, int) else every,
        # as by default in Lightning
        gradient_clip_algorithm=None if t.gradient_clip_algorithm == "norm" else t.gradient_clip_algorithm,
        deterministic=t.deterministic or None,
        sync_batchnorm=t.sync_batchnorm and topology.world_size > 1,
        logger=False,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # fully_shard makes parameters anew at the first forward pass; in inference mode nothing could read them as weights
        # (https://github.com/pytorch/pytorch/issues/95957, for which Lightning does the same with its own strategy)
        **{
            "inference_mode": not isinstance(strategy, FullyShardedStrategy),
            "use_distributed_sampler": topology.world_size > 1,
            **t.extra,
        },
    )
    limit = t.overfit_batches or t.limit_train_batches
    if isinstance(limit, int) and not t.fast_dev_run:
        trainer.limit_train_batches = limit * count_parts(config)
    skip_signal_exchange(trainer)
    return trainer


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
