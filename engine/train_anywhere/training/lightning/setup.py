"""Create what a run needs before training."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from train_anywhere.checkpoints.choice import list_weight_files, read_chosen, select_weights
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config, Init
from train_anywhere.data.dataset import Splits, check_labels
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.torch.loader import BatchLoader
from train_anywhere.distributed.layout import running_strategy
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.features import Features
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import open_run
from train_anywhere.training.adapters import refuse_adapters_alone, refuse_other_base
from train_anywhere.training.lightning.checkpoint.position import seed_everything
from train_anywhere.training.lightning.checkpoint.restorer import StoredWeights
from train_anywhere.training.lightning.dropin.model import ConfiguredOptimizer, make_task
from train_anywhere.training.lightning.dropin.trainable import refuse_uneven_batches
from train_anywhere.training.lightning.hardware import apply_hardware_options
from train_anywhere.training.lightning.loaders import (
    UserLoaders,
    count_rows,
    open_loaders,
    takes_batch_size,
)
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.lightning.loop.steps import training_loaders
from train_anywhere.training.lightning.strategies.choose import make_strategy, pick_device
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.trainer import make_trainer
from train_anywhere.training.lightning.weights import (
    FileWeights,
    add_adapters,
    find_adapters,
    read_base,
    stored_base,
)
from train_anywhere.training.plan import (
    Plan,
    batchnorm_notes,
    build_network,
    make_user_plan,
    refuse_other_framework,
    validation_notes,
)
from train_anywhere.training.reporting.header import Header, cpu_name


class Setup:
    """What a run needs before training: `connect`, `open_data` and `make_module` create it in this order.

    Attributes:
        strategy: name of the strategy.
        devices: number of devices that share the global batch.
        optimizer: makes the optimizer of the configuration, if the module does not have its own.
        facts: facts of the data set.
    """

    trainer: pl.Trainer
    module: pl.LightningModule
    loaders: UserLoaders
    facts: Mapping[str, Any]

    def __init__(self, config: Config, topology: Topology) -> None:
        self.config, self.topology = config, topology
        self.strategy, self.devices = running_strategy(config, topology)
        self.course = Course(replace(make_user_plan(config, math.inf, True, True, None), known=False))

    @property
    def plan(self) -> Plan:
        """The size of the run."""
        return self.course.plan

    def connect(self, heartbeat: Heartbeat, folder: Path | None = None) -> pl.Trainer:
        """Return the Trainer after the ranks have connected. User code writes into `folder`."""
        config, topology = self.config, self.topology
        seed_everything(config.seed)
        os.environ["PL_GLOBAL_SEED"] = str(config.seed)  # Lightning's samplers and user code read it
        strategy = make_strategy(self.strategy, config, topology, pick_device(config.trainer, topology))
        self.trainer = make_trainer(config, topology, strategy, folder)
        self.optimizer = ConfiguredOptimizer(self.trainer, config, self.course, self.devices)
        heartbeat.at("meeting")
        strategy.setup_environment()  # connects the ranks
        heartbeat.at("preparing")
        return self.trainer

    def open_data(self) -> Splits:
        """Return the splits of `data=`. Raises DataError."""
        data, target = self.config.data, locate(self.config.data.target["lightning"], "data._target_")
        size = data.batch_size if takes_batch_size(target) else data.batch_size // self.topology.world_size
        stager = Features.of(self.config).stager
        return open_splits(data, "lightning", self.config.seed, stager, batch_size=size)

    def make_module(self, data: Splits) -> pl.LightningModule:
        """Return the module of `task=`, and open its loaders. Raises ConfigError, DataError."""
        config, strategy, course = self.config, self.trainer.strategy, self.course
        build = strategy.build if isinstance(strategy, FullyShardedStrategy) else lambda make: make()
        if task_has_network(config.task, "lightning"):
            module = build(lambda: make_task(config.task))
            add_adapters(module, config, whole=True)
            if isinstance(strategy, OneDevicePerRank):
                strategy.allow_unused_parameters(module)
        else:
            network = make_network(config, data, build)
            module = make_task(config.task, network=network, make_optimizer=self.optimizer.make_optimizer)
        self.module, self.facts = module, data.facts
        self.loaders = open_loaders(config, data, self.topology, module, self._report)
        course.when_opened(lambda _: refuse_uneven_batches(self.trainer))
        course.when_opened(self._plan_run)
        for note in [*data.notes, *batchnorm_notes(config, (name for name, _ in module.named_buffers()))]:
            self._report(note)
        apply_hardware_options(module, config.trainer, strategy)
        return module

    def _report(self, line: str) -> None:
        """Print a line on rank 0, before there is a display."""
        if self.config.monitor.progress != "none" and self.trainer.is_global_zero:
            print(line, flush=True)

    def _plan_run(self, batches: float) -> None:
        """Plan the run, whose loaders Lightning has just opened."""
        trainer, module = self.trainer, self.trainer.lightning_module
        if math.isinf(batches):
            each = ", the same number on each rank" if trainer.world_size > 1 else ""
            self._report(
                f"the training loader has no length: an epoch is all batches that it returns{each}; "
                "trainer.limit_train_batches=N sets a number."
            )
        tests = is_overridden("test_step", module) and self.loaders.has("test")
        sizes = [
            one.dataset.size.batch_per_rank
            if isinstance(one, BatchLoader)
            else getattr(one, "batch_size", None)
            for one in training_loaders(trainer)
        ]
        size = sizes[0] if len(sizes) == 1 else None
        validates, tests = trainer.enable_validation, tests and bool(trainer.limit_test_batches)
        self.plan.update(make_user_plan(self.config, batches, validates, tests, size))
        for note in validation_notes(self.config.trainer, self.plan):
            self._report(note)

    def header(self) -> Header:
        """Return the facts of the run for its first lines, in `fit`."""
        device, loaders, val = self.trainer.strategy.root_device, self.loaders, self.trainer.val_dataloaders
        module = self.trainer.lightning_module
        parameters = [*module.parameters()]
        weights = [p for p in parameters if not isinstance(p, nn.UninitializedParameter)]
        names = {"cuda": lambda: torch.cuda.get_device_name(device), "mps": lambda: "Apple GPU"}
        config, own = self.config, task_has_network(self.config.task, "lightning")
        return Header(
            model=type(module).__name__ if own else config.model.name,
            parameters=sum(p.numel() for p in weights) if len(weights) == len(parameters) else None,
            trained=sum(p.numel() for p in weights if p.requires_grad),
            rows={
                "training rows": count_rows(self.trainer.train_dataloader),
                # no `or`: a stream has no truth value
                "validation": count_rows(loaders.val if val is None else val),
                "test": count_rows(loaders.test),
            },
            device=names.get(device.type, cpu_name)(),
            devices=self.devices,
            strategy=self.strategy,
        )


def make_setup(config: Config, topology: Topology) -> Setup:
    """Return all that a run needs before training."""
    setup = Setup(config, topology)
    setup.connect(Heartbeat())
    setup.make_module(setup.open_data())
    return setup


def make_network(config: Config, splits: Splits, build: Callable[..., Any]) -> nn.Module:
    """Return the network of the section `model`, which `build` creates.

    Raises:
        ConfigError: the network is not a torch.nn.Module.
        DataError: the first rows do not suit it.
    """
    check_labels(splits)
    network = build(lambda: build_network(config, splits.facts))
    if not isinstance(network, nn.Module):
        dotted = config.model.target["lightning"]
        raise ConfigError(
            f"model._target_={dotted} returns a {type(network).__name__}, which is not a torch.nn.Module."
        )
    add_adapters(network, config, whole=False)
    return network


def load_initial_weights(init: Init, module: nn.Module, report: Callable[[str], None]) -> None:
    """Load the weights that `init` names, if any, on every rank.

    Raises:
        CheckpointError: the weights can't be read, or do not fit.
    """
    if init.run is None:
        return

    def read(saved: SavedCheckpoint) -> StoredWeights:
        refuse_other_framework(saved, "lightning")
        return StoredWeights(saved.path)

    files, found = list_weight_files(init.run), find_adapters(module)
    stored: StoredWeights | FileWeights | None = None
    if not files:
        stored = read_chosen(open_run(init.run), init.checkpoint, read)
        if base := stored_base(stored.shapes):
            saved = read_base(stored.read(base))
            if found is None:
                refuse_adapters_alone(init.run, saved[1])
            else:
                refuse_other_base(f"init.run={init.run}", saved, found[1].identity)
            del stored.shapes[base]
            found = None  # its adapters are loaded, not its base
    if found:
        prefix, adapters = found
        own = {prefix + name: tensor for name, tensor in adapters.base_weights().items()}
    else:
        state = module.state_dict()
        own = {n: t for n, t in state.items() if isinstance(t, Tensor) and n != stored_base(state)}
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    stored = stored or FileWeights(files, shapes)
    taken = select_weights(shapes, stored.shapes, init, report)
    if found:
        adapters.set_base({name.removeprefix(prefix): stored.read(name) for name in taken})
        return
    module.load_state_dict({n: stored.read(n) for n in taken if not own[n].is_meta}, strict=False)
