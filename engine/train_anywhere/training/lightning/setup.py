"""Create what a run needs before training."""

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
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
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.features import Features
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.training.lightning.checkpoint.rank_state import gather, unpack
from train_anywhere.training.lightning.dropin.model import make_task
from train_anywhere.training.lightning.hardware import apply_hardware_options
from train_anywhere.training.lightning.loaders import UserLoaders, count_rows, open_loaders
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.lightning.loop.steps import training_loaders
from train_anywhere.training.lightning.optim import ConfiguredOptimizer
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.trainer import make_trainer
from train_anywhere.training.lightning.weights import add_adapters
from train_anywhere.training.order import Training
from train_anywhere.training.plan import (
    Plan,
    batchnorm_notes,
    build_network,
    make_user_plan,
    validation_notes,
)
from train_anywhere.training.reporting.header import Header, cpu_name


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
            network = make_network(config, data, build)
            module = make_task(config.task, network=network, make_optimizer=self.optimizer.make_optimizer)
        self.module, self.data = module, data
        self.loaders = open_loaders(config, data, self.process.topology, module, self._report)
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
        device, loaders, val = self.trainer.strategy.root_device, self.loaders, self.trainer.val_dataloaders
        module = self.trainer.lightning_module
        parameters = [*module.parameters()]
        weights = [p for p in parameters if not isinstance(p, nn.UninitializedParameter)]
        names = {"cuda": lambda: torch.cuda.get_device_name(device), "mps": lambda: "Apple GPU"}
        config, own = self.config, task_has_network(self.config.task, "lightning")
        rows = {
            "training rows": count_rows(self.trainer.train_dataloader),
            # no `or`: a stream has no truth value
            "validation": count_rows(loaders.val if val is None else val),
            "test": count_rows(loaders.test),
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


def make_network(config: Config, splits: Splits, build: Callable[..., Any]) -> nn.Module:
    """Return the network of `model`, which `build` creates. Raises ConfigError for another object, DataError for unfit rows."""
    check_labels(splits)
    network = build(lambda: build_network(config, splits.facts))
    if not isinstance(network, nn.Module):
        dotted = config.model.target["lightning"]
        raise ConfigError(
            f"model._target_={dotted} returns a {type(network).__name__}, which is not a torch.nn.Module."
        )
    add_adapters(network, config, whole=False)
    return network
