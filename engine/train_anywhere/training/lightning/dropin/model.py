"""What someone else wrote for Lightning's Trainer, taken in as it is: a module with its own steps, callbacks, loggers."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden

from train_anywhere.config.choices import Logger as Section
from train_anywhere.config.instantiate import instantiate, locate, refusals
from train_anywhere.config.load import as_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.runs.folder import RunDir
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.dropin.loggers import Tracks
from train_anywhere.training.lightning.hardware import uncompiled
from train_anywhere.training.lightning.module import set_learning_rate
from train_anywhere.training.lightning.optim import apply_settings, configured_optimizer
from train_anywhere.training.plan import Plan
from train_anywhere.training.tracking import Pair, make_logger, open_loggers


def make_task(config: Config) -> Task | pl.LightningModule:
    """What `task` names: a task that is given a network, or a module that has one.

    Raises:
        ConfigError: it is neither, or can't be made.
    """
    dotted = config.task.target["lightning"]
    with refusals(f"task._target_={dotted}"):
        made = instantiate(config.task, "task", "lightning")
    if isinstance(made, Task) and hasattr(made, "step"):
        return made
    if isinstance(made, pl.LightningModule):
        return made
    if isinstance(made, Task):
        raise ConfigError(
            f"task._target_={dotted} has no step for Lightning; see src/tasks/lightning/regression.py for one."
        )
    if isinstance(made, torch.nn.Module):
        raise ConfigError(
            f"task._target_={dotted} is a torch.nn.Module without a training_step; use it as the network of a task, "
            f"model._target_={dotted} task=NAME, or make it a LightningModule."
        )
    raise ConfigError(
        f"task._target_={dotted} made a {type(made).__qualname__}, which is neither a task of src/tasks nor a LightningModule."
    )


def without_evaluation(module: pl.LightningModule, plan: Plan) -> Plan:
    """The plan without a validation or test that the module has no step for."""
    validates, tests = (is_overridden(f"{part}_step", module) for part in ("validation", "test"))
    return replace(
        plan, val_batches=plan.val_batches if validates else 0, test_batches=plan.test_batches if tests else 0
    )


def brings_optimizer(module: pl.LightningModule) -> bool:
    """Whether the module configures its own."""
    return is_overridden("configure_optimizers", module)


class ConfiguredOptimizer(pl.Callback):
    """Gives a module that brings none the optimizer and the schedule of the configuration.

    Args:
        devices: that share the global batch.
    """

    def __init__(self, module: pl.LightningModule, config: Config, plan: Plan, devices: int) -> None:
        self.config, self.plan, self.devices = config, plan, devices
        module.configure_optimizers = lambda: configured_optimizer(config, plan, module, devices)  # type: ignore[method-assign]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A run may resume with other settings than it was saved with."""
        apply_settings(self.config, pl_module, trainer.optimizers[0])

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Set the learning rate of this step."""
        set_learning_rate(pl_module, self.config, self.plan, self.devices, optimizer)


def callbacks_of(config: Config, module: pl.LightningModule, trainer: pl.Trainer) -> list[pl.Callback]:
    """The callbacks of the configuration, and those that the module itself configures.

    Raises:
        ConfigError: one is none of Lightning's, or writes checkpoints.
    """
    chosen: list[pl.Callback] = []
    for name, section in config.callbacks.items():
        where, dotted = f"callbacks.{name}", section.target["lightning"]
        with refusals(f"{where}._target_={dotted}"):
            made = instantiate(section, where, "lightning")
        if not isinstance(made, pl.Callback):
            raise ConfigError(
                f"{where}._target_={dotted} made a {type(made).__qualname__}, which is no lightning.pytorch.Callback."
            )
        if isinstance(made, Checkpoint):
            raise ConfigError(
                f"{where}._target_={dotted} would write checkpoints that no resume finds; this project writes them: use "
                "checkpoint.monitor, checkpoint.every_n_steps and checkpoint.keep_last."
            )
        chosen.append(made)
    return [
        *(c for c in chosen if type(c) not in {type(o) for o in _own(module, trainer)}),
        *_own(module, trainer),
    ]


def _own(module: pl.LightningModule, trainer: pl.Trainer) -> list[pl.Callback]:
    """What `configure_callbacks` of the module gave, once; Lightning would put them after ours, which save what all have done."""
    if "configure_callbacks" not in vars(module):
        module.trainer = trainer
        given = module.configure_callbacks()
        own = [given] if isinstance(given, pl.Callback) else list(given)
        kept = [callback for callback in own if not isinstance(callback, Checkpoint)]
        if len(kept) < len(own) and trainer.is_global_zero:
            print(
                "the module's own checkpoint callback is left out: this project writes the checkpoints.",
                flush=True,
            )
        module.configure_callbacks = list  # type: ignore[method-assign]
        vars(module)["callbacks_of_module"] = kept
    own_callbacks: list[pl.Callback] = vars(module)["callbacks_of_module"]
    return own_callbacks


def loggers_of(config: Config, run: RunDir, first: bool, step: int, seen: Iterable[Pair]) -> list[Logger]:
    """The loggers of the configuration. Lightning's are made on every rank, and write on rank 0; all others on rank 0 alone.

    Args:
        first: whether this is rank 0.
        step: optimizer steps done by earlier attempts.
        seen: what metrics.csv held before it was cut back to that step.

    Raises:
        ConfigError: one takes other arguments, or has no `log_metrics`.
    """
    made: list[Logger] = []
    others: dict[str, Section] = {}
    for name, section in config.loggers.items():
        where, dotted = f"loggers.{name}", section.target["lightning"]
        target = locate(dotted, f"{where}._target_")
        if not (inspect.isclass(target) and issubclass(target, Logger)):
            others[name] = section
            continue
        with refusals(f"{where}._target_={dotted}"):
            logger = make_logger(name, section, config, run, step, seen)
        logger.log_hyperparams(as_tree(config))
        made.append(logger)
    tracked = open_loggers(replace(config, loggers=others), run, first, step, seen)
    for one in tracked:
        if not hasattr(one.logger, "log_metrics"):
            raise ConfigError(
                f"loggers.{one.name} is a {type(one.logger).__qualname__}, which has no log_metrics(metrics, step)."
            )
    return [*made, *(Tracks(one) for one in tracked)]


@contextmanager
def lightning_refusals() -> Iterator[None]:
    """What Lightning or torch refuses, as one sentence of ours. Raises ConfigError."""
    try:
        yield
    except MisconfigurationException as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"Lightning refuses: {said.rstrip('.')}.") from error
    except RuntimeError as error:
        if sentence := uncompiled(error):
            raise ConfigError(sentence) from error
        if "`dataloader_idx`" in str(error):  # of several loaders, or of one
            raise ConfigError(f"Lightning refuses: {error}") from error
        if str(error).startswith("DataLoader worker (pid"):
            raise DataError(
                f"a process that loads data ended by itself ({str(error).strip()}): killed by the system, it ran out of memory; use fewer, "
                "such as data.workers=1 (num_workers of your own DataLoader), or more memory: cluster.mem. data.workers=0 shows a crash."
            ) from error
        if "not used in producing" not in str(error):
            raise
        raise ConfigError(
            "strategy=ddp needs every trained parameter in the loss of each step, and some are not in it; use "
            "trainer.find_unused_parameters=true, or freeze those (requires_grad_(False))."
        ) from error
