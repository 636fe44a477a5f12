"""Use a user's LightningModule, callbacks and loggers unchanged."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden

from train_anywhere.config.choices import Task as TaskConfig
from train_anywhere.config.instantiate import explain_target_errors, instantiate, locate, make_kind
from train_anywhere.config.keys import OpenSection
from train_anywhere.config.load import to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.runs.folder import RunDir
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.dropin.old_task import OldTask
from train_anywhere.training.lightning.dropin.visible import RunLogger, RunWandb
from train_anywhere.training.lightning.hardware import explain_compile_error
from train_anywhere.training.tracking import make_logger, open_logger, tracker_run_id
from train_anywhere.training.tracking.wandb import Wandb


def make_task(section: TaskConfig, **supplied: Any) -> pl.LightningModule:
    """Return the LightningModule that `task` names. Raises ConfigError for another object, or if it can't be created.

    `supplied` are its arguments `network` and `make_optimizer`, for a module that takes them.
    """
    dotted = section.target["lightning"]
    with explain_target_errors(f"task._target_={dotted}"):
        created = instantiate(section, "task", "lightning", **supplied)
    if isinstance(created, Task):
        created = OldTask(created, **supplied)
    if isinstance(created, pl.LightningModule):
        return created
    if isinstance(created, torch.nn.Module):
        raise ConfigError(
            f"task._target_={dotted} is a torch.nn.Module without a training_step; use it as the network of a task "
            f"(model._target_={dotted} task=NAME), or make it a LightningModule."
        )
    raise ConfigError(
        f"task._target_={dotted} returns a {type(created).__qualname__}, which is not a LightningModule."
    )


def make_callbacks(sections: Mapping[str, OpenSection], fsdp: bool = False) -> list[pl.Callback]:
    """Return the callbacks of the configuration. Raises ConfigError for one of another kind.

    With `fsdp` each rank has a part of the weights, which a ModelCheckpoint can't write.
    """
    chosen: list[pl.Callback] = []
    keys: dict[str, str] = {}
    for name, section in sections.items():
        where, dotted = f"callbacks.{name}", section.target["lightning"]
        callback = make_kind(section, where, "lightning", pl.Callback, "lightning.pytorch.Callback")
        if isinstance(callback, OnExceptionCheckpoint) or (fsdp and isinstance(callback, Checkpoint)):
            raise ConfigError(
                f"{where}._target_={dotted} would write checkpoints that a run can't resume from; leave it out: this project saves "
                "checkpoints, also when a run stops."
            )
        if is_overridden("state_dict", callback, pl.Callback):
            other = keys.setdefault(callback.state_key, name)
            if other != name:
                raise ConfigError(
                    f"{where} and callbacks.{other} have the same state_key ({callback.state_key}), so a checkpoint would hold the state "
                    f"of only one; leave one out, or give {type(callback).__qualname__} a state_key for each."
                )
        chosen.append(callback)
    return chosen


def make_loggers(config: Config, run: RunDir, first: bool) -> list[Logger]:
    """Return the loggers, which write on the `first` rank. Raises ConfigError for other arguments, or without `log_metrics`."""
    loggers: list[Logger] = []
    for name, section in config.loggers.items():
        where, dotted = f"loggers.{name}", section.target["lightning"]
        target = locate(dotted, f"{where}._target_")
        if inspect.isclass(target) and issubclass(target, Logger):
            with explain_target_errors(f"{where}._target_={dotted}"):
                loggers.append(make_logger(name, section, config, run))
            loggers[-1].log_hyperparams(to_tree(config))
        else:
            tracked = open_logger(name, section, config, run) if first else None
            kind = RunWandb if target is Wandb else RunLogger
            loggers.append(kind(name, run.path, tracker_run_id(run), tracked))
    return loggers


@contextmanager
def explain_lightning_errors() -> Iterator[None]:
    """Turn common errors of Lightning and torch into a ConfigError or DataError."""
    try:
        yield
    except (MisconfigurationException, ValueError) as error:
        if not isinstance(error, MisconfigurationException) and "`val_check_interval`" not in str(error):
            raise
        message = " ".join(str(error).split())
        raise ConfigError(f"Lightning refuses: {message.rstrip('.')}.") from error
    except RuntimeError as error:
        if explanation := explain_compile_error(error):
            raise ConfigError(explanation) from error
        if "`dataloader_idx`" in str(error):  # the step's arguments do not fit one or several loaders
            raise ConfigError(f"Lightning refuses: {error}") from error
        if str(error).startswith("DataLoader worker (pid"):
            raise DataError(
                f"a data loading process died ({str(error).strip()}). If the system killed it, memory ran out: use fewer processes, such "
                "as data.workers=1 (num_workers of your own DataLoader), or more memory (cluster.mem). data.workers=0 shows a crash."
            ) from error
        if "not used in producing" not in str(error):
            raise
        raise ConfigError(
            "strategy=ddp needs every trainable parameter in the loss of each step, and some are not in it; use "
            "trainer.find_unused_parameters=true, or freeze those parameters (requires_grad_(False))."
        ) from error
