"""A Trainer for Lightning's own tests, which starts a run of this project.

`fit` goes through `train_and_test` of the engine, with the module, loaders, callbacks and loggers that the test passes instead of those
that a configuration names. `validate`, `test` and `predict` are those of the engine's Trainer.
"""

import inspect
import shutil
import sys
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from train_anywhere.config.checks.targets import OWN_ARGUMENTS
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import ModuleLoaders, Splits
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning import run, setup, trainer
from train_anywhere.training.lightning.dropin.visible import is_visible

SIGNATURE = inspect.signature(pl.Trainer)
SAME: dict[str, tuple[Any, ...]] = {
    "accelerator": ("auto", "cpu"), "devices": ("auto", 1, "1"), "strategy": ("auto",), "num_nodes": (1,), "barebones": (False,),
    "reload_dataloaders_every_n_epochs": (0,), "fast_dev_run": (False, True, 0, 1), "deterministic": (False, True),
    "precision": (32, "32", "32-true", "bf16-mixed", "16-mixed"), "max_time": (),
}  # fmt: skip
"""Values that mean the same in a run of this project on one CPU."""


class SetByProject(Exception):
    """The test needs an argument that this project sets itself, or a value that it refuses."""


@cache
def default_tree() -> dict[str, Any]:
    """Return the composed configuration of a module with its own loaders on one CPU."""
    words = "data=module trainer.accelerator=cpu trainer.devices=1 monitor.progress=none monitor.report=false checkpoint.local=null"
    task = "task._target_=lightning.pytorch.demos.boring_classes.BoringModel"
    return compose(to_hydra_overrides([task, "monitor.sample_seconds=null", *words.split()]))


def to_config(arguments: dict[str, Any]) -> Config:
    """Return the configuration for arguments of Lightning's Trainer. Raises SetByProject if one has no equivalent."""
    SIGNATURE.bind(**arguments)
    arguments = {n: v for n, v in arguments.items() if v is not None or n == "check_val_every_n_epoch"}
    for name, values in SAME.items():
        value = arguments.get(name)
        if value is not None and (type(value), value) not in [(type(v), v) for v in values]:
            raise SetByProject(f"{name}={value!r}"[:80])
    default, epochs = default_tree(), 1000 if arguments.get("max_steps", -1) == -1 else MAX_COUNT
    keys = default["trainer"] | {"max_epochs": epochs, "num_sanity_val_steps": 2, "log_every_n_steps": 50}
    extra = {}
    for name, value in arguments.items():
        if name in ("max_steps", "gradient_clip_val", "overfit_batches") and value in (-1, 0):
            value = None
        elif name == "precision":
            value = str(value).removesuffix("-true")
        elif name in ("fast_dev_run", "sync_batchnorm", "deterministic"):
            value = bool(value)
        elif name == "val_check_interval" and type(value) is int:  # this project counts optimizer steps
            value, left = divmod(value, arguments.get("accumulate_grad_batches", 1))
            if left:
                raise SetByProject(f"{name}={arguments[name]} between two optimizer steps")
        if name in OWN_ARGUMENTS and name not in ("precision", "fast_dev_run"):
            continue
        (keys if name in keys and name != "profiler" else extra)[name] = value
    own = {
        "trainer": keys,
        "monitor": default["monitor"] | {"tensorboard": arguments.get("logger", True) is True},
    }
    try:
        config = load(default | own)
    except ConfigError as error:
        raise SetByProject(str(error)) from error
    return replace(config, trainer=replace(config.trainer, extra=extra))


class Trainer(trainer.Trainer):
    """The Trainer of a run, which is created from Lightning's arguments and whose `fit` starts the run."""

    def __init__(self, **arguments: Any) -> None:
        self._config, self._runs, callbacks = to_config(arguments), False, arguments.get("callbacks") or []
        self._users = callbacks if isinstance(callbacks, list) else [callbacks]
        if any(isinstance(one, Checkpoint) for one in self._users):
            raise SetByProject("a callback that writes checkpoints")
        logger = [] if isinstance(arguments.get("logger") or True, bool) else arguments["logger"]
        self._own_loggers = [*logger] if hasattr(logger, "__iter__") else [logger]
        device = setup.pick_device(self._config.trainer, Topology())
        strategy = setup.make_strategy("single", self._config, Topology(), device, 1)
        with mock.patch.multiple(trainer, silence_lightning=lambda: None, Trainer=super().__init__):
            trainer.make_trainer(self._config, Topology(), device, strategy, False)
        self._apply_settings()
        self.loggers, self.callbacks = self._own_loggers, self._users

    def fit(self, model: Any, train_dataloaders: Any = None, val_dataloaders: Any = None, datamodule: Any = None,
            ckpt_path: Any = None, weights_only: bool | None = None) -> None:  # fmt: skip
        """Train a module as a run in a new folder; the run itself calls this method again to start Lightning's loop."""
        if self._runs:
            super().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, weights_only)
            return
        data = datamodule if train_dataloaders is None else train_dataloaders
        if ckpt_path is not None or (data is None and val_dataloaders is not None):
            raise SetByProject("fit(ckpt_path=...), or val_dataloaders without training loaders")
        splits = Splits(ModuleLoaders() if data is None else data, val_dataloaders)
        folder = Path(tempfile.mkdtemp(prefix="peer-test-"))
        weakref.finalize(self, shutil.rmtree, folder, True)
        self.callbacks, self.steps_done, self._runs = [], 0, True
        instead = {
            setup: {"make_task": lambda _: model, "open_splits": lambda *_, **__: splits, "make_strategy": lambda *_: self.strategy,
                    "make_trainer": lambda *_: self, "seed_everything": lambda _: None,
                    "make_callbacks": lambda _: self._users, "make_loggers": lambda *_: self._own_loggers},
            run: {"seed_everything": lambda _: None, "test": lambda *_: None},
        }  # fmt: skip
        try:
            with ExitStack() as stack:
                for module, names in instead.items():
                    stack.enter_context(mock.patch.multiple(module, **names))
                run.train_and_test(self._config, RankProcess(RunDir(folder), Topology(), Stop()))
        except ProjectError as error:
            if isinstance(error, ConfigError):  # tests expect the errors of Lightning
                raise error.__cause__ or MisconfigurationException(str(error)) from error
            if not str(error).startswith("nothing was trained"):
                raise
        finally:
            kept, self._runs = [c for c in self.callbacks if is_visible(c)], False
            list.__setitem__(self.callbacks, slice(None), [self.validated_weights, *kept])


def install() -> None:
    """Put this class in place of Lightning's Trainer."""
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # TensorBoard would import it, which takes seconds
    for name in ("lightning.pytorch", "lightning.pytorch.trainer", "lightning.pytorch.trainer.trainer"):
        sys.modules[name].Trainer = Trainer  # type: ignore[attr-defined]
