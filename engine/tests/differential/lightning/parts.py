"""The imports of drawn programs: data sets, loaders, and `seen`, which records the hooks."""

import hashlib
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

EVENTS: list[tuple[Any, ...]] = []
"""Calls so far: (owner, hook, stage, epoch, global step, ids of rows, other arguments, extra)."""


class Stopping:
    """Sends SIGTERM to this process at the call with a number."""

    at = -1


class Rows(Dataset[Any]):
    """Rows with ids from `first`. With `noise` each read draws the row again."""

    def __init__(self, count: int, first: int = 0, noise: bool = False, form: str = "dict") -> None:
        generator = torch.Generator().manual_seed(first)
        self.x = torch.randn(count, 4, generator=generator)
        self.first, self.noise, self.form = first, noise, form

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x = (
            self.x[index] + torch.rand(4) + np.random.rand() + random.random()
            if self.noise
            else self.x[index]
        )
        x, y, number = x.float(), self.x[index].sum()[None], self.first + index
        return {"x": x, "y": y, "i": number} if self.form == "dict" else (x, y, number)


class Stream(IterableDataset[Any]):
    """The same rows without a length."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(len(self.rows)))


class Backwards(Sampler[int]):
    """A user's sampler in reverse order that starts at another row in each epoch."""

    def __init__(self, rows: Rows) -> None:
        self.count, self.epoch = len(rows), 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, as Lightning does."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([(self.epoch - index) % self.count for index in range(self.count)])


class Uneven(Sampler[list[int]]):
    """A user's batch sampler, with batches of 1, 2, 3, 1, ... rows."""

    def __init__(self, rows: Rows) -> None:
        self.batches, start = list[list[int]](), 0
        while start < len(rows):
            end = min(len(rows), start + 1 + len(self.batches) % 3)
            self.batches.append(list(range(start, end)))
            start = end

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class Changing(DataLoader[Any]):
    """A user's loader that changes its batches."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            if isinstance(batch, dict):
                yield {**batch, "i": batch["i"] + 10000}
            else:
                yield [batch[0], batch[1], batch[2] + 10000]


class Shorter(DataLoader[Any]):
    """A user's loader that reports a batch less than it has."""

    def __len__(self) -> int:
        return max(1, super().__len__() - 1)


class Stateful(DataLoader[Any]):
    """A user's loader that saves its position, as torchdata's StatefulDataLoader does."""

    start = done = 0

    def __iter__(self) -> Any:
        start, self.start, self.done = self.start, 0, self.start
        for number, rows in enumerate(list(self.batch_sampler)):
            if number >= start:
                self.done = number + 1
                yield self.collate_fn([self.dataset[row] for row in rows])

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches that were read."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Start the next pass at the saved position."""
        self.start = state["done"]


class Batches:
    """A user's iterable of batches that is not a DataLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        return iter(self.loader)


def make_loader(
    kind: str, count: int, first: int, batch: int, noise: bool, form: str, drop_last: bool
) -> Any:
    """Return a loader of a kind."""
    rows = Rows(count, first, noise, form)
    own = {"batch_size": batch, "drop_last": drop_last}
    makers: dict[str, Callable[[], Any]] = {
        "map": lambda: DataLoader(rows, **own),
        "shuffle": lambda: DataLoader(rows, shuffle=True, **own),
        "sampler": lambda: DataLoader(rows, sampler=Backwards(rows), **own),
        "batch_sampler": lambda: DataLoader(rows, batch_sampler=Uneven(rows)),
        "iterable": lambda: DataLoader(Stream(rows), **own),
        "own_iter": lambda: Changing(rows, **own),
        "own_len": lambda: Shorter(rows, **own),
        "stateful": lambda: Stateful(rows, **own),
        "batches": lambda: Batches(DataLoader(rows, **own)),
    }
    return makers[kind]()


def find_batches(found: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield x, y and ids of each batch in an argument, such as a dict of batches."""
    if isinstance(found, dict) and "i" in found:
        yield found["x"], found["y"], found["i"]
    elif isinstance(found, list | tuple) and len(found) == 3 and all(isinstance(f, Tensor) for f in found):
        yield found[0], found[1], found[2]
    elif isinstance(found, dict | list | tuple):
        for one in found.values() if isinstance(found, dict) else found:
            yield from find_batches(one)


def xy(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the rows of all loaders in a batch."""
    found = list(find_batches(batch))
    return torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])


def ids(batch: Any) -> list[int]:
    """Return the ids of the rows in an argument."""
    return [number for _, _, one in find_batches(batch) for number in one.tolist()]


def trainer_of(owner: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the Trainer of a module, data module or callback. None before it has one."""
    if arguments and hasattr(arguments[0], "fit_loop"):
        return arguments[0]
    return getattr(owner, "_trainer", None) or getattr(owner, "trainer", None)


def plain(value: Any) -> Any:
    """Return a value that can be compared and pickled."""
    if isinstance(value, Tensor):
        return ("tensor", str(value.dtype), value.detach().flatten()[:3].tolist())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def seen(owner: Any, hook: str, *arguments: Any, extra: str = "") -> Any:
    """Record a hook's arguments and the `extra` facts: random, metrics, trainer or logger."""
    trainer = trainer_of(owner, arguments)
    stage = trainer and trainer.state.stage
    place = trainer and (trainer.current_epoch, trainer.global_step)
    rows = [ids(argument) for argument in arguments if isinstance(argument, dict | list | tuple)]
    others = [plain(a) for a in arguments if not isinstance(a, dict | list | tuple) or not ids(a)]
    if "checkpoint" in hook or "state_dict" in hook:
        others = []
    look = {
        "random": lambda: (torch.rand(1).item(), float(np.random.rand()), random.random()),
        "metrics": lambda: metrics(trainer),
        "trainer": lambda: attributes(trainer),
        "logger": lambda: logger(trainer),
    }
    values = look[extra]() if extra and (trainer or extra == "random") else None
    EVENTS.append((type(owner).__name__, hook, stage and stage.value, place, rows, others, extra, values))
    if len(EVENTS) == Stopping.at:
        signal.raise_signal(signal.SIGTERM)
    return values


def metrics(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return all metrics that users can read from the Trainer."""
    kinds = ("callback_metrics", "logged_metrics", "progress_bar_metrics")
    return {kind: {name: float(value) for name, value in getattr(trainer, kind).items()} for kind in kinds}


def weights(module: Any) -> str:
    """Return a checksum of the weights."""
    parts = [t.detach().cpu().numpy().tobytes() for t in module.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


PLAIN = [
    "num_devices", "device_ids", "num_nodes", "node_rank", "world_size", "global_rank", "local_rank",
    "is_global_zero", "log_every_n_steps", "max_epochs", "min_epochs", "max_steps", "min_steps", "max_time",
    "limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches",
    "overfit_batches", "fast_dev_run", "accumulate_grad_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "val_check_interval", "val_check_batch", "check_val_every_n_epoch",
    "current_epoch", "global_step", "num_training_batches", "num_val_batches", "num_test_batches",
    "num_sanity_val_batches", "num_sanity_val_steps", "is_last_batch", "should_stop", "training",
    "validating", "testing", "predicting", "evaluating", "sanity_checking", "interrupted",
    "enable_validation", "received_sigterm", "reload_dataloaders_every_n_epochs", "precision", "barebones",
    "ckpt_path", "predict_dataloaders", "scaler",
]  # fmt: skip
TYPES = [
    "train_dataloader",
    "val_dataloaders",
    "test_dataloaders",
    "datamodule",
    "lightning_module",
    "model",
    "precision_plugin",
]


def attributes(trainer: Any) -> dict[str, Any]:
    """Return about 60 public attributes of the Trainer."""
    look: dict[str, Callable[[], Any]] = {name: lambda n=name: plain(getattr(trainer, n)) for name in PLAIN}  # type: ignore[misc]
    look |= {name: lambda n=name: plain_type(getattr(trainer, n)) for name in TYPES}  # type: ignore[misc]
    look |= {
        "state": lambda: (str(trainer.state.fn), str(trainer.state.stage), str(trainer.state.status)),
        "estimated_stepping_batches": lambda: plain(trainer.estimated_stepping_batches),
        "optimizers": lambda: [(type(o).__name__, o.param_groups[0]["lr"]) for o in trainer.optimizers],
        "lr_scheduler_configs": lambda: [
            (type(c.scheduler).__name__, c.interval, c.frequency, c.monitor)
            for c in trainer.lr_scheduler_configs
        ],
        "callbacks": lambda: [kind_of(c, "Callback") for c in trainer.callbacks if not is_of_engine(c)],
        "callbacks of the run": lambda: any(map(is_of_engine, trainer.callbacks)),
        "early_stopping_callbacks": lambda: len(trainer.early_stopping_callbacks),
        "checkpoint_callback": lambda: [
            hasattr(trainer.checkpoint_callback, name)
            for name in ("best_model_path", "best_model_score", "last_model_path", "dirpath", "monitor")
        ],
        "checkpoint_callbacks": lambda: bool(trainer.checkpoint_callbacks),
        "default_root_dir": lambda: isinstance(trainer.default_root_dir, str),
        "log_dir": lambda: type(trainer.log_dir).__name__,
        "strategy": lambda: (trainer.strategy.root_device.type, trainer.strategy.is_global_zero),
        "accelerator": lambda: type(trainer.accelerator).__name__,
        "loggers": lambda: [kind_of(one) for one in trainer.loggers],
        "logger": lambda: kind_of(trainer.logger),
        "profiler": lambda: type(trainer.profiler).__name__,
    }
    return {name: attempt(one) for name, one in look.items()}


def is_of_engine(callback: Any) -> bool:
    """Return whether a callback is this project's. The one that follows the checkpoints stands for Lightning's."""
    kind = type(callback)
    return kind.__module__.startswith("train_anywhere.") and kind.__name__ != "RunCheckpoints"


def kind_of(one: Any, *but: str) -> str:
    """Return the first class of Lightning of an object, without these, or else its own class."""
    packages = ("lightning.", "pytorch_lightning.")
    found = [k for k in type(one).__mro__ if k.__module__.startswith(packages) and k.__name__ not in but]
    return (found or [type(one)])[0].__name__


def plain_type(value: Any) -> Any:
    """Return the types in a tree."""
    if isinstance(value, dict):
        return {name: plain_type(one) for name, one in value.items()}
    return [plain_type(one) for one in value] if type(value) in (list, tuple) else type(value).__name__


def logger(trainer: Any) -> dict[str, Any]:
    """Return what users call of each logger."""
    look: dict[str, Callable[[], Any]] = {
        "number": lambda: len(trainer.loggers),
        "experiment": lambda: [type(one.experiment).__name__ for one in trainer.loggers],
        "add_scalar": lambda: [hasattr(one.experiment, "add_scalar") for one in trainer.loggers],
        "log_metrics": lambda: [one.log_metrics({"own": 1.0}, step=0) for one in trainer.loggers],
        "log_hyperparams": lambda: [one.log_hyperparams({"own": 1}) for one in trainer.loggers],
        "name": lambda: [type(one.name).__name__ for one in trainer.loggers],
        "version": lambda: [type(one.version).__name__ for one in trainer.loggers],
        "save_dir": lambda: [type(one.save_dir).__name__ for one in trainer.loggers],
    }
    return {name: attempt(one) for name, one in look.items()}


def attempt(function: Callable[[], Any]) -> Any:
    """Return the result, or the name of the error."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:120]


def record_stages(trainer_class: Any) -> None:
    """Record metrics and weights at the end of each fit and test of all Trainers of a package."""
    run = trainer_class._run_stage

    def recorded(self: pl.Trainer) -> Any:
        result = run(self)
        EVENTS.append(("Trainer", f"end of {self.state.fn}", None, None, [], [], "end", {
            **metrics(self), "weights": weights(self.lightning_module), "trainer": attributes(self),
        }))  # fmt: skip
        return result

    trainer_class._run_stage = recorded


class Kept:
    """An object with a counter in another one."""

    def __init__(self) -> None:
        self.count, self.inner = 0, self
        self.inner = type(self).__new__(type(self))
        self.inner.count = 0


class Moving(torch.optim.SGD):
    """An optimizer of values that are in no module."""

    def __init__(self) -> None:
        self.values = [torch.nn.Parameter(torch.ones(2))]
        super().__init__(self.values, lr=0.1, momentum=0.9)
        self.values[0].grad = torch.ones(2)


def batches(module: Any) -> int:
    """Return the number of steps that the module has made."""
    return int(module.trainer.global_step)
