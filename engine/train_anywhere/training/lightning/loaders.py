"""The loaders of a run as this rank reads them, whose processes ignore the signals that stop training."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import util
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, Dataset, IterableDataset

from train_anywhere.config.schema import Config, Data
from train_anywhere.data.array_data import map_leaves
from train_anywhere.data.dataset import DataSet, ModuleLoaders, Splits
from train_anywhere.data.order.assignment import BatchOrder, block_order
from train_anywhere.data.torch.loader import Batches, BatchLoader, torch_loader
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.job.rank_process import SIGNALS
from train_anywhere.training.plan import count_parts, refuse_parts


@dataclass(frozen=True)
class UserLoaders:
    """The loaders of a run, which Lightning opens and reads itself.

    Attributes:
        source: the LightningDataModule, or the module itself.
        opened: those that `data._target_` returned, by "train", "val" or "test". Lightning asks `source` for any other.
    """

    source: pl.LightningDataModule | pl.LightningModule
    opened: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Return whether there is a split with the name "train", "val" or "test"."""
        return name in self.opened or is_overridden(f"{name}_dataloader", self.source)

    def arguments(self, *names: str) -> dict[str, Any]:
        """Return the Trainer's arguments for the loaders of these splits."""
        if isinstance(self.source, pl.LightningDataModule):
            return {"datamodule": self.source}
        return {LOADERS[name]: self.opened[name] for name in names if name in self.opened}


LOADERS = {"train": "train_dataloaders", "val": "val_dataloaders", "test": "dataloaders"}
"""Names of the Trainer's arguments for the loaders of a split."""


@dataclass(frozen=True)
class Opener:
    """Turns data sets and loaders into loaders of this rank."""

    config: Config
    topology: Topology
    report: Callable[[str], None]

    def open_loaders(self, splits: Splits, module: pl.LightningModule) -> UserLoaders:
        """Return the loaders of this rank. Raises ConfigError, DataError for a split that can't be read on these ranks."""
        data = self.config.data
        if (source := find_source(data, splits, module)) is not None:
            refuse_parts(self.config, type(source).__name__)
            return UserLoaders(source, {})
        if is_overridden("train_dataloader", module):
            self.report(
                f"the train_dataloader of {type(module).__name__} is not used: data={data.name} replaces it; data=module uses it."
            )
        given = {name: split for name in LOADERS if (split := getattr(splits, name)) is not None}
        return UserLoaders(module, {name: self.open_loader(split, name) for name, split in given.items()})

    def open_loader(self, split: Any, name: str) -> Any:
        """Return the loaders of a split for Lightning. Raises ConfigError if it can't be read."""
        target = f"data._target_={self.config.data.target['lightning']}"
        if is_collection(split):
            return map_leaves(split, lambda one: self.open_loader(one, name))
        if isinstance(split, DataSet) or is_map_style(split):
            return self._open_rows(split, name == "train")
        if isinstance(split, dict) or not hasattr(split, "__iter__"):
            raise ConfigError(
                f"the {name} split of {target} is a {type(split).__qualname__}, which is neither a data set (__len__ and "
                "__getitem__ or read) nor a loader (__iter__)."
            )
        if name == "train":
            refuse_parts(self.config, type(split).__name__)
        ranks, combined = self.topology.world_size, isinstance(split, CombinedLoader)
        again = name != "train" or self.config.trainer.epoch_limit > 1
        if again and not combined and not self.config.trainer.fast_dev_run and hasattr(split, "__next__"):
            raise ConfigError(
                f"the {name} loader of {target} is a {type(split).__name__}, which can be read only once; return the function that "
                "creates it."
            )
        stream = not isinstance(split, DataLoader) or isinstance(split.dataset, IterableDataset)
        if ranks > 1 and not combined and stream and not is_sharded(split, ranks):
            self.report(
                f"each rank reads all of the {name} loader, unless it returns another part on each rank by itself."
            )
        if not isinstance(split, IterableDataset) or yields_batches(split):
            return split
        rows, kind = self.config.data.batch_size // self.topology.world_size, type(split).__name__
        if name == "train":
            self.report(
                f"batches of {rows} rows of a {kind}; if it returns batches, use DataLoader(..., batch_size=None)."
            )
        return DataLoader(split, batch_size=rows)

    def _open_rows(self, data: Any, train: bool) -> BatchLoader:
        """Return the loader of a data set: global batches by seed and epoch, the same on any number of ranks."""
        topology, rows, size = self.topology, len(data), self.config.data.batch_size
        if train and rows % size:
            self.report(f"each epoch leaves out {rows % size} of {rows} rows: they fill no batch.")
        shuffle = train and self.config.trainer.overfit_batches is None
        blocks = block_order(data)
        parts = count_parts(self.config) if train else 1
        at = topology.rank, topology.world_size
        order = BatchOrder(size, self.config.seed, *at, shuffle, blocks, parts, drop_last=train)
        loader = torch_loader(
            Batches(data, order), workers=self.config.data.workers, ranks=topology.local_world_size
        )
        # The loader draws a number at each start, and a resumed epoch starts twice: do not draw from the model's generator.
        loader.generator = torch.Generator()
        loader.worker_init_fn = partial(init_worker, None)
        return loader


def count_rows(opened: Any) -> int | None:
    """Return the number of rows of a loader or of several opened ones, or None if one is not known."""
    known = (opened if isinstance(opened, CombinedLoader) else CombinedLoader(opened)).flattened
    found: list[Any] = [getattr(one, "dataset", None) for one in known]
    rows = [len(d.dataset) if isinstance(d, Batches) else len(d) for d in found if is_map_style(d)]
    return sum(rows) if len(rows) == len(found) else None


def is_map_style(split: object) -> bool:
    """Return whether rows can be read by index."""
    by_index = hasattr(split, "__getitem__") and hasattr(split, "__len__")
    return by_index and not isinstance(split, IterableDataset | dict)


def is_collection(split: Any) -> bool:
    """Return whether this is a list, tuple or dict of loaders and data sets, also a nested one."""
    named = isinstance(split, dict)
    inner = split.values() if isinstance(split, dict) else split if isinstance(split, list | tuple) else ()
    return bool(inner) and all(is_source(one, named) or is_collection(one) for one in inner)


def is_source(value: object, named: bool = False) -> bool:
    """Return whether a value in a list, or `named` in a dict, is a data set or a loader itself, and not a row."""
    if isinstance(value, Dataset | DataSet) or hasattr(value, "__getitems__"):
        return True
    if isinstance(value, dict | list | tuple | str) or hasattr(value, "__array__"):
        return False
    return named if is_map_style(value) else hasattr(value, "__iter__")


def yields_batches(stream: IterableDataset[Any]) -> bool:
    """Return whether a stream yields batches, not rows, because it reads from a DataLoader like webdataset's WebLoader."""
    inner = [v for value in vars(stream).values() for v in (value if isinstance(value, list) else [value])]
    return any(isinstance(value, DataLoader) for value in inner)


def is_sharded(loader: Any, ranks: int) -> bool:
    """Return whether the loader reads a different part on each of `ranks` ranks."""
    inner = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    found = [loader, *inner, getattr(inner[1], "sampler", None)]
    return any(getattr(s, "num_replicas", None) == ranks and hasattr(s, "set_epoch") for s in found)


def find_source(
    data: Data, splits: Splits, task: object
) -> pl.LightningDataModule | pl.LightningModule | None:
    """Return the module or data module with the loaders, or None. Raises ConfigError without a training loader."""
    source = task if isinstance(splits.train, ModuleLoaders) else splits.train
    modules = pl.LightningDataModule | pl.LightningModule
    if isinstance(source, modules) and is_overridden("train_dataloader", source):
        return source
    if source is task:
        raise ConfigError(
            f"data=module reads the loaders of a LightningModule, and {type(task).__name__} has no train_dataloader; name the data, "
            "such as data._target_=mine.open_data."
        )
    if splits.train is splits.val is splits.test:
        raise ConfigError(
            f"data._target_={data.target['lightning']} returns a {type(source).__qualname__}, which has no attribute train and is not a "
            "data set, loader or LightningDataModule."
        )
    return None


def init_worker(inner: Callable[[int], None] | None, worker: int) -> None:
    """Ignore stop signals in a worker of a loader, then call the user's `worker_init_fn`."""
    for number in SIGNALS:  # workers are needed until training has stopped
        signal.signal(number, signal.SIG_IGN)
    if inner:
        inner(worker)


def protect_workers(loader: Any, rank: int) -> None:
    """Let the workers of a user's loader ignore stop signals, which Slurm sends to them too."""
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return
    inner = loader.worker_init_fn
    # Lightning seeds only workers without a function
    if inner is None and int(os.environ.get("PL_SEED_WORKERS", 0)):
        inner = partial(pl_worker_init_function, rank=rank)
    if getattr(inner, "func", None) is not init_worker:
        loader.worker_init_fn = partial(init_worker, inner)


def kill_workers() -> None:
    """Kill the remaining workers at exit. Python would wait for them, since they ignore SIGTERM."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report a crash
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


util.Finalize(None, kill_workers, exitpriority=100)  # runs before Python waits for its children
