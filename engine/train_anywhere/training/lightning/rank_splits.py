"""The splits of the data as this rank reads them: in this project's order if rows can be read by index."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset

from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config, Data
from train_anywhere.data.dataset import DataSet, ModuleLoaders, Splits
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.batch_check import check_batch
from train_anywhere.data.torch.loader import Batches
from train_anywhere.data.torch.samples import Prepare, Reader, is_map_style
from train_anywhere.data.torch.unpadded_batches import UnpaddedOrder
from train_anywhere.data.torch.user_loader import (
    batch_count,
    is_sharded,
    is_source,
    read_settings,
    yields_batches,
)
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.batches import IndexedSplit, RankSplit, SeveralSplits, StreamSplit
from train_anywhere.training.lightning.loop.fast_loop import overrides
from train_anywhere.training.plan import batches_per_step


@dataclass(frozen=True)
class RankSplits:
    """This rank's batches of each split; test and validation may be missing.

    Attributes:
        datamodule: the LightningDataModule that returned the loaders, for its hooks.
    """

    train: RankSplit
    val: RankSplit | None
    test: RankSplit | None
    datamodule: pl.LightningDataModule | None = None


@dataclass(frozen=True)
class Opener:
    """Turns data sets and loaders into splits of this rank.

    Attributes:
        weighted: whether batches need weights, as those of a task of this project.
        prepare: the task's `prepare`, if any.
        report: prints a line, on rank 0.
        source: the data module or module that returned the loaders, if any.
    """

    config: Config
    topology: Topology
    weighted: bool
    prepare: Prepare
    report: Callable[[str], None]
    source: pl.LightningDataModule | pl.LightningModule | None = None

    @property
    def _target(self) -> str:
        return f"data._target_={self.config.data.target['lightning']}"

    def open_split(self, split: Any, name: str) -> RankSplit:
        """Return the split with the name "train", "val" or "test".

        Raises:
            ConfigError: it can't be read, or not on this number of ranks.
        """
        train = name == "train"
        if inner := list_loaders(split):
            if train:
                raise ConfigError(
                    "the data has several training loaders; return one, of a data set that joins them."
                )
            return SeveralSplits([self.open_split(one, name) for one in inner])
        if known := read_settings(split):
            ranks, each = self.topology.world_size, known.batch_size
            if each == self.config.data.batch_size and takes_batch_size(type(self.source)):
                each //= ranks
            order = self._order(each * ranks, known.shuffle)
            bare = UnpaddedOrder(order, train or known.drop_last, order.train)
            reader = Reader(known.dataset, self.config.seed, self.prepare, known.collate)
            if train and (ranks > 1 or each != self.config.data.batch_size):
                self.report(f"batch {each} per rank, {each * ranks} in all: data comes from your DataLoader.")
            return self._open_indexed(reader, bare, known.workers, train, split.worker_init_fn)
        if isinstance(split, DataSet) or is_map_style(split):
            order = self._order(self.config.data.batch_size, train)
            bare = UnpaddedOrder(order, drop_last=train, shuffle=order.train)
            return self._open_indexed(
                Reader(split, self.config.seed, self.prepare), bare, self.config.data.workers, train
            )
        if isinstance(split, dict) or not hasattr(split, "__iter__"):
            raise ConfigError(
                f"the {name} split of {self._target} is a {type(split).__qualname__}, which is neither a data set (__len__ and "
                "__getitem__ or read) nor a loader (__iter__)."
            )
        return self._open_stream(split, name)

    def _order(self, batch_size: int, shuffle: bool) -> BatchOrder:
        t = self.topology
        shuffle = shuffle and self.config.trainer.overfit_batches is None
        return BatchOrder(batch_size, self.config.seed, t.rank, t.world_size, shuffle)

    def _open_indexed(
        self, reader: Reader, bare: UnpaddedOrder, workers: int, train: bool, worker_init: Any = None
    ) -> RankSplit:
        length, order = len(reader.dataset), bare.order
        check_batch(length, order.batch_size, order.world_size, train)
        left = length % order.batch_size
        if train and left and not self.weighted:
            self.report(
                f"each epoch leaves out {left} of {length} rows, in a new order: they do not fill a batch."
            )
        weighted = replace(order, accumulate=batches_per_step(self.config.trainer)) if train else order
        return IndexedSplit(Batches(reader, weighted if self.weighted else bare, train), workers, worker_init)

    def _open_stream(self, split: Any, name: str) -> RankSplit:
        """Return the split of a loader whose rows can't be read by index."""
        evaluates, ranks = name != "train", self.topology.world_size
        if isinstance(split, IterableDataset) and self.source is None and not yields_batches(split):
            rows, kind = self.config.data.batch_size // ranks, type(split).__name__
            if not evaluates:
                self.report(
                    f"batches of {rows} rows of a {kind}; if it returns batches, use DataLoader(..., batch_size=None)."
                )
            split = DataLoader(split, batch_size=rows)
        if ranks > 1 and not is_sharded(split, ranks):
            raise ConfigError(
                f"the {name} loader of {self._target} would give all {ranks} ranks the same batches;"
                " return the data set itself, which is split over the ranks, or a loader with a DistributedSampler."
            )
        if ranks > 1 and not evaluates:
            self.report(
                f"each step reads a batch of the loader on each of {ranks} ranks: with more ranks, steps are fewer and larger."
            )
        if evaluates and hasattr(split, "__next__"):
            raise ConfigError(
                f"the {name} loader of {self._target} is a {type(split).__name__}, which can be read only once; return the function that "
                "creates it."
            )
        limit, length = getattr(self.config.trainer, f"limit_{name}_batches"), batch_count(split)
        if length is None and self.config.trainer.fast_dev_run:
            length = 1
        if length is None and evaluates and ranks == 1 and isinstance(limit, float) and limit == 1:
            length = MAX_COUNT  # read to its end
        if length is None:
            if not isinstance(limit, int):
                raise ConfigError(
                    f"the {name} loader of {self._target} has no length; set the number of its batches: "
                    f"trainer.limit_{name}_batches=N."
                )
            length = limit
        if not evaluates:
            stateful = hasattr(split, "state_dict") and hasattr(split, "load_state_dict")
            self.report(
                "a resumed run restores the loader's position."
                if stateful
                else "a resumed run reads the trained batches of its epoch again and skips them."
            )
        rank, seed = self.topology.rank, self.config.seed
        return StreamSplit(split, length, seed, rank, not evaluates, self.weighted, self.prepare)


def list_loaders(split: Any) -> list[Any]:
    """Return the loaders or data sets in a list, tuple, dict or CombinedLoader; an empty list for a single one."""
    if isinstance(split, CombinedLoader):
        return list(split.flattened)
    inner, named = (split.values(), True) if isinstance(split, dict) else (split, False)
    several = isinstance(split, dict | list | tuple) and all(is_source(one, named) for one in inner)
    return [*inner] if several else []


def open_rank_splits(
    config: Config,
    splits: Splits,
    topology: Topology,
    task: Task | pl.LightningModule,
    trainer: pl.Trainer,
    report: Callable[[str], None],
) -> RankSplits:
    """Open each split of the data for this rank, when the ranks are connected; `report` prints a line, on rank 0.

    Raises:
        ConfigError, DataError: a split can't be read, or not on this number of ranks.
    """
    native = not isinstance(task, pl.LightningModule)
    source, splits = find_loaders(config.data, splits, task, topology, trainer)
    prepare = getattr(task, "prepare", None) if native else None
    opener = Opener(config, topology, native, prepare, report, source)
    if not native and overrides(task, "train_dataloader") and source is not task:
        report(
            f"the train_dataloader of {type(task).__name__} is not used: data={config.data.name} replaces it; data=module uses it."
        )
    test = None if splits.test is None else opener.open_split(splits.test, "test")
    val = None if splits.val is None else opener.open_split(splits.val, "val")
    datamodule = source if isinstance(source, pl.LightningDataModule) else None
    return RankSplits(opener.open_split(splits.train, "train"), val, test, datamodule)


def find_loaders(
    data: Data, splits: Splits, task: object, topology: Topology, trainer: pl.Trainer
) -> tuple[Any, Splits]:
    """Return the data module, or the module itself, that has the loaders (None: neither), and the splits.

    Raises:
        ConfigError: the data is another object, or the module has no training loader.
    """
    source = task if isinstance(splits.train, ModuleLoaders) else splits.train
    if isinstance(source, pl.LightningDataModule | pl.LightningModule) and overrides(
        source, "train_dataloader"
    ):
        return source, from_module(source, splits, topology, trainer)
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
    return None, splits


def from_module(
    module: pl.LightningDataModule | pl.LightningModule,
    splits: Splits,
    topology: Topology,
    trainer: pl.Trainer,
) -> Splits:
    """Return the loaders of a module or data module, after calling its hooks for data once, as Lightning does."""
    module.trainer = trainer
    if topology.rank == 0 or (topology.local_rank == 0 and module.prepare_data_per_node):
        module.prepare_data()
    trainer.strategy.barrier("prepare_data")
    module.setup("fit")
    test = None
    if overrides(module, "test_dataloader"):
        module.setup("test")
        test = module.test_dataloader()
    module.prepare_data = lambda: None  # type: ignore[method-assign]
    module.setup = lambda stage: None  # type: ignore[method-assign]
    val = module.val_dataloader() if overrides(module, "val_dataloader") else None
    return replace(splits, train=module.train_dataloader(), val=val, test=test)


def takes_batch_size(kind: Any) -> bool:
    """Return whether a class is a LightningDataModule with an argument batch_size, which gets the batch size of all ranks together."""
    module = isinstance(kind, type) and issubclass(kind, pl.LightningDataModule)
    return module and "batch_size" in inspect.signature(kind).parameters
