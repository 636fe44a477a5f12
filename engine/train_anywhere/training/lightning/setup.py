"""Create what a run needs before training."""

import inspect
import logging
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits, check_labels
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.torch.loader import BatchLoader
from train_anywhere.data.torch.random_states import seed_everything
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.features import Features
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.training.lightning.checkpoint.rank_state import gather, unpack
from train_anywhere.training.lightning.dropin.model import make_task
from train_anywhere.training.lightning.hardware import apply_hardware_options, precision_arguments
from train_anywhere.training.lightning.loaders import Opener, UserLoaders, count_rows
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.lightning.loop.steps import training_loaders
from train_anywhere.training.lightning.optim import ConfiguredOptimizer
from train_anywhere.training.lightning.private import skip_signal_exchange
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.weights import add_adapters
from train_anywhere.training.order import Training
from train_anywhere.training.plan import (
    Plan,
    batches_per_step,
    batchnorm_notes,
    build_network,
    count_parts,
    make_user_plan,
    validation_notes,
)
from train_anywhere.training.reporting.header import Header, cpu_name

SAME = ("fast_dev_run", "max_epochs", "limit_train_batches", "limit_val_batches", "limit_test_batches", "gradient_clip_val",
        "check_val_every_n_epoch", "log_every_n_steps", "num_sanity_val_steps")  # fmt: skip
"""Keys of `trainer` that Lightning has with the same meaning."""


class Setup(Training):
    """A run until it trains: `make_trainer`, `open_data` and `make_model` create what it needs, in this order.

    `devices` share the global batch; `optimizer` makes that of the configuration, if the module does not have its own.
    """

    trainer: pl.Trainer
    module: pl.LightningModule
    loaders: UserLoaders
    data: Splits

    def __init__(self, config: Config, process: RankProcess) -> None:
        super().__init__(config, process)
        self.strategy, self.devices = running_strategy(config, process.topology)
        plan = replace(make_user_plan(config, math.inf, True, True, None), known=False)
        self.course = Course(plan, self._loaders_opened)

    @property
    def plan(self) -> Plan:
        """The size of the run."""
        return self.course.plan

    def make_trainer(self) -> pl.Trainer:
        """Return the Trainer, after the ranks have connected. User code writes into the run folder."""
        config, topology, heartbeat = self.config, self.process.topology, self.process.heartbeat
        seed_everything(config.seed)
        os.environ["PL_GLOBAL_SEED"] = str(config.seed)  # Lightning's samplers and user code read it
        strategy = make_strategy(self.strategy, config, topology, pick_device(config.trainer, topology))
        self.trainer = make_trainer(config, topology, strategy, self.process.run.path)
        self.optimizer = ConfiguredOptimizer(self.trainer, config, self.course, self.devices)
        heartbeat.at("meeting")
        strategy.setup_environment()  # connects the ranks
        heartbeat.at("preparing")
        return self.trainer

    def open_data(self) -> Splits:
        """Return the splits of `data=`. Raises DataError."""
        data, target = self.config.data, locate(self.config.data.target["lightning"], "data._target_")
        ranks, stager = self.process.topology.world_size, Features.of(self.config).stager
        module = isinstance(target, type) and issubclass(target, pl.LightningDataModule)
        as_typed = module and "batch_size" in inspect.signature(target).parameters
        size = data.batch_size if as_typed else data.batch_size // ranks
        return open_splits(data, "lightning", self.config.seed, stager, batch_size=size)

    def make_model(self, data: Splits) -> pl.LightningModule:
        """Return the module of `task=`, and open its loaders. Raises ConfigError, DataError."""
        config, strategy = self.config, self.trainer.strategy
        build = strategy.build if isinstance(strategy, FullyShardedStrategy) else lambda make: make()
        if task_has_network(config.task, "lightning"):
            module = build(lambda: make_task(config.task))
            add_adapters(module, config, whole=True)
        else:
            check_labels(data)
            network = build(lambda: build_network(config, data.facts))
            if not isinstance(network, nn.Module):
                dotted = config.model.target["lightning"]
                raise ConfigError(
                    f"model._target_={dotted} returns a {type(network).__name__}, which is not a torch.nn.Module."
                )
            add_adapters(network, config, whole=False)
            module = make_task(config.task, network=network, make_optimizer=self.optimizer.make_optimizer)
        self.module, self.data = module, data
        self.loaders = Opener(config, self.process.topology, self._report).open_loaders(data, module)
        for note in [*data.notes, *batchnorm_notes(config, (name for name, _ in module.named_buffers()))]:
            self._report(note)
        apply_hardware_options(module, config.trainer, strategy)
        return module

    def _report(self, line: str) -> None:
        """Print a line on rank 0, before there is a display."""
        if self.config.monitor.progress != "none" and self.trainer.is_global_zero:
            print(line, flush=True)

    def _loaders_opened(self, batches: float) -> None:
        """Plan the run, whose loaders Lightning has just opened. Raises DataError if the ranks have other numbers of batches."""
        trainer, module = self.trainer, self.trainer.lightning_module
        counts = [unpack(rank)["batches"] for rank in gather({"batches": batches}, trainer)]
        if len({*counts}) > 1:
            raise DataError(
                f"the training loader has {min(counts)} batches on one rank and {max(counts)} on another, and all ranks make the "
                f"same steps; use trainer.limit_train_batches={min(counts)}."
            )
        if math.isinf(batches):
            each = ", the same number on each rank" if trainer.world_size > 1 else ""
            self._report(
                f"the training loader has no length: an epoch is all batches that it returns{each}; "
                "trainer.limit_train_batches=N sets a number."
            )
        tests = is_overridden("test_step", module) and self.loaders.has("test")
        loaders = training_loaders(trainer)
        one = loaders[0] if len(loaders) == 1 else None
        order = one.dataset.order if isinstance(one, BatchLoader) else None
        size = order.batch_per_rank if order else getattr(one, "batch_size", None)
        validates, tests = trainer.enable_validation, tests and bool(trainer.limit_test_batches)
        self.plan.update(make_user_plan(self.config, batches, validates, tests, size))
        for note in validation_notes(self.config.trainer, self.plan):
            self._report(note)

    def header(self, known: Mapping[str, Any]) -> Header:
        """Return the facts of the run for its first lines, in `fit`. A resumed run opens some loaders later: `known` has their rows."""
        device, loaders = self.trainer.strategy.root_device, self.loaders.opened
        val = self.trainer.val_dataloaders
        module = self.trainer.lightning_module
        parameters = [*module.parameters()]
        weights = [p for p in parameters if not isinstance(p, nn.UninitializedParameter)]
        names = {"cuda": lambda: torch.cuda.get_device_name(device), "mps": lambda: "Apple GPU"}
        config, own = self.config, task_has_network(self.config.task, "lightning")
        rows = {
            "training rows": count_rows(self.trainer.train_dataloader),
            # no `or`: a stream has no truth value
            "validation": count_rows(loaders.get("val") if val is None else val),
            "test": count_rows(loaders.get("test")),
        }
        return Header(
            model=type(module).__name__ if own else config.model.name,
            parameters=sum(p.numel() for p in weights) if len(weights) == len(parameters) else None,
            trained=sum(p.numel() for p in weights if p.requires_grad),
            rows={name: known.get(name) if count is None else count for name, count in rows.items()},
            device=names.get(device.type, cpu_name)(),
            devices=self.devices,
            strategy=self.strategy,
        )


def make_trainer(
    config: Config, topology: Topology, strategy: Strategy, folder: Path | None = None
) -> pl.Trainer:
    """Return the Trainer of one rank, still without callbacks and loggers; user code writes into `folder`."""
    silence_lightning()
    t, device = config.trainer, strategy.root_device
    # TF32 has 10 bits of mantissa, see https://docs.pytorch.org/docs/stable/notes/cuda.html
    if torch.cuda.is_available():
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
