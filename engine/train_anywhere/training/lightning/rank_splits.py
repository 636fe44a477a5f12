"""The splits of the data as this rank reads them."""

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, IterableDataset

from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config, Data
from train_anywhere.data.dataset import DataSet, ModuleLoaders, Splits
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.batch_check import check_batch
from train_anywhere.data.order.blocks import block_order
from train_anywhere.data.torch.loader import Batches
from train_anywhere.data.torch.samples import Prepare, Reader, is_map_style
from train_anywhere.data.torch.unpadded_batches import UnpaddedOrder
from train_anywhere.data.torch.user_loader import (
    Ranks,
    batch_count,
    is_sharded,
    is_source,
    lists_shards,
    read_settings,
    split_stream,
    yields_batches,
)
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.batches import IndexedSplit, RankSplit, SeveralSplits, StreamSplit
from train_anywhere.training.lightning.checkpoint.rank_state import gather, unpack
from train_anywhere.training.plan import batches_per_step


@dataclass(frozen=True)
class RankSplits:
    """This rank's batches of each split. Test and validation may be missing."""

    train: RankSplit
    val: RankSplit | None
    test: RankSplit | None

    def arguments(self, *names: str, start: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """Return the Trainer's arguments for the loaders. Training starts at an epoch and batch."""
        found = {}
        for name in names:
            part = getattr(self, name)
            found[LOADERS[name]] = part.loader(start if name == "train" else (0, 0)) if part else []
        return found


@dataclass(frozen=True)
class UserLoaders:
    """The loaders of a user's LightningModule, which Lightning opens and reads itself.

    Attributes:
        train, val, test: what `data._target_` returned; None: Lightning asks `source` for it.
        source: the LightningDataModule, or the module itself.
    """

    train: Any
    val: Any
    test: Any
    source: pl.LightningDataModule | pl.LightningModule

    def has(self, name: str) -> bool:
        """Return whether there is a split with the name "train", "val" or "test"."""
        return getattr(self, name) is not None or is_overridden(f"{name}_dataloader", self.source)

    def arguments(self, *names: str, **_: Any) -> dict[str, Any]:
        """Return the Trainer's arguments for the loaders of these splits."""
        if isinstance(self.source, pl.LightningDataModule):
            return {"datamodule": self.source}
        given = {LOADERS[name]: getattr(self, name) for name in names}
        return {name: loader for name, loader in given.items() if loader is not None}


LOADERS = {"train": "train_dataloaders", "val": "val_dataloaders", "test": "dataloaders"}
"""Names of the Trainer's arguments for the loaders of a split."""


@dataclass(frozen=True)
class Opener:
    """Turns data sets and loaders into splits of this rank.

    Attributes:
        weighted: whether batches need weights, as those of a task of this project.
        source: the data module or module that returned the loaders, if any.
        gather: returns the values of all ranks.
    """

    config: Config
    topology: Topology
    weighted: bool
    prepare: Prepare
    report: Callable[[str], None]
    source: pl.LightningDataModule | pl.LightningModule | None = None
    gather: Callable[[Any], list[Any]] = lambda value: [value]

    @property
    def _target(self) -> str:
        return f"data._target_={self.config.data.target['lightning']}"

    def open_split(self, split: Any, name: str) -> RankSplit:
        """Return the split "train", "val" or "test". Raises ConfigError if it can't be read."""
        train = name == "train"
        if inner := list_loaders(split):
            if train:
                raise ConfigError(
                    "the data has several training loaders, and a task of src/tasks reads one; return one, of a data set that joins them."
                )
            return SeveralSplits([self.open_split(one, name) for one in inner.values()])
        if known := read_settings(split):
            ranks, each = self.topology.world_size, known.batch_size
            if each == self.config.data.batch_size and takes_batch_size(type(self.source)):
                each //= ranks
            order = self._order(each * ranks, known.shuffle)
            bare = UnpaddedOrder(order, train or known.drop_last)
            reader = Reader(known.dataset, self.config.seed, self.prepare, known.collate)
            if train and (ranks > 1 or each != self.config.data.batch_size):
                self.report(f"batch {each} per rank, {each * ranks} in all: data comes from your DataLoader.")
            return self._open_indexed(reader, bare, known.workers, train, split.worker_init_fn)
        if isinstance(split, DataSet) or is_map_style(split):
            return self._open_rows(split, train)
        self._check_iterable(split, name)
        return self._open_stream(split, name)

    def open_loader(self, split: Any, name: str) -> Any:
        """Return the loaders of a split for Lightning. Raises ConfigError if it can't be read."""
        if is_collection(split):
            if isinstance(split, dict):
                return {key: self.open_loader(one, name) for key, one in split.items()}
            return [self.open_loader(one, name) for one in split]
        if isinstance(split, DataSet) or is_map_style(split):
            return self._open_rows(split, name == "train").loader()
        self._check_iterable(split, name)
        ranks, combined = self.topology.world_size, isinstance(split, CombinedLoader)
        again = name != "train" or self.config.trainer.max_epochs > 1
        if again and not combined and not self.config.trainer.fast_dev_run:
            self._refuse_iterator(split, name)
        stream = not isinstance(split, DataLoader) or isinstance(split.dataset, IterableDataset)
        if ranks > 1 and not combined and stream and not is_sharded(split, ranks):
            self.report(
                f"each rank reads all of the {name} loader, unless it returns another part on each rank by itself."
            )
        return self._batched(split, name)

    def _batched(self, split: Any, name: str) -> Any:
        """Return a stream of rows as a loader of batches, and anything else as it is."""
        if not isinstance(split, IterableDataset) or self.source is not None or yields_batches(split):
            return split
        rows, kind = self.config.data.batch_size // self.topology.world_size, type(split).__name__
        if name == "train":
            self.report(
                f"batches of {rows} rows of a {kind}; if it returns batches, use DataLoader(..., batch_size=None)."
            )
        return DataLoader(split, batch_size=rows)

    def _refuse_iterator(self, split: Any, name: str) -> None:
        if hasattr(split, "__next__"):
            raise ConfigError(
                f"the {name} loader of {self._target} is a {type(split).__name__}, which can be read only once; return the function that "
                "creates it."
            )

    def _check_iterable(self, split: Any, name: str) -> None:
        if isinstance(split, dict) or not hasattr(split, "__iter__"):
            raise ConfigError(
                f"the {name} split of {self._target} is a {type(split).__qualname__}, which is neither a data set (__len__ and "
                "__getitem__ or read) nor a loader (__iter__)."
            )

    def _open_rows(self, split: Any, train: bool) -> IndexedSplit:
        order = self._order(self.config.data.batch_size, train)
        bare = UnpaddedOrder(order, drop_last=train)
        reader = Reader(split, self.config.seed, self.prepare)
        return self._open_indexed(reader, bare, self.config.data.workers, train)

    def _order(self, batch_size: int, shuffle: bool) -> BatchOrder:
        t = self.topology
        shuffle = shuffle and self.config.trainer.overfit_batches is None
        return BatchOrder(batch_size, self.config.seed, t.rank, t.world_size, shuffle)

    def _open_indexed(
        self, reader: Reader, bare: UnpaddedOrder, workers: int, train: bool, worker_init: Any = None
    ) -> IndexedSplit:
        bare = replace(bare, order=replace(bare.order, blocks=block_order(reader.dataset)))
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
        split = self._batched(split, name)
        own = self.config.data.own_split
        if ranks > 1 and not is_sharded(split, ranks):
            lists = self.gather(zlib.crc32(repr(lists_shards(split)).encode()))
            own = own or len({*lists}) > 1
            split = self._split_stream(split, name, own)
        if ranks > 1 and not evaluates:
            self.report(
                f"each step reads a batch of the loader on each of {ranks} ranks: with more ranks, steps are fewer and larger, so resume "
                "in the middle of an epoch on the same number."
            )
        if evaluates:
            self._refuse_iterator(split, name)
        limit = getattr(self.config.trainer, f"limit_{name}_batches")
        lengths = [batch_count(split)] if ranks == 1 else self.gather(batch_count(split))
        length = None if None in lengths else max(lengths)
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
        shared = Ranks(self.topology.rank, ranks, self.gather, own)
        return StreamSplit(split, length, self.config.seed, shared, not evaluates, self.prepare)

    def _split_stream(self, split: Any, name: str, own_split: bool) -> Any:
        """Return a stream as this rank reads it. Raises ConfigError if it can't be split."""
        own = split_stream(split, self.topology.rank, self.topology.world_size, own_split)
        if own is None:
            raise ConfigError(
                f"the {name} loader of {self._target} would give all {self.topology.world_size} ranks the same batches; return the data "
                "set itself, which is split over the ranks, or a loader with a DistributedSampler. Does it give each rank rows of its "
                "own? Use data.split=own."
            )
        if not self.config.data.own_split:
            how = (
                "lists shards of its own on each rank"
                if own_split
                else "is split over the ranks by its shards"
            )
            self.report(f"the {name} loader {how}.")
        return own


def count_rows(combined: CombinedLoader | None) -> int | None:
    """Return the number of rows of opened loaders, or None if one is not known."""
    known = combined.flattened if combined is not None else [None]
    found: list[Any] = [getattr(one, "dataset", None) for one in known]
    rows = [len(d.reader.dataset) if isinstance(d, Batches) else len(d) for d in found if is_map_style(d)]
    return sum(rows) if len(rows) == len(found) else None


def is_collection(split: Any) -> bool:
    """Return whether this is a list, tuple or dict of loaders and data sets, also a nested one."""
    if not isinstance(split, dict | list | tuple) or not split:
        return False
    named = isinstance(split, dict)
    inner = split.values() if isinstance(split, dict) else split
    return all(is_source(one, named) or is_collection(one) for one in inner)


def list_loaders(split: Any) -> dict[Any, Any]:
    """Return the loaders or data sets in a list, tuple or dict by their keys."""
    if not isinstance(split, dict | list | tuple):
        return {}
    named = isinstance(split, dict)
    inner = dict(split) if isinstance(split, dict) else dict(enumerate(split))
    return inner if all(is_source(one, named) for one in inner.values()) else {}


def open_rank_splits(
    config: Config,
    splits: Splits,
    topology: Topology,
    task: Task | pl.LightningModule,
    trainer: pl.Trainer,
    report: Callable[[str], None],
) -> RankSplits | UserLoaders:
    """Open each split for this rank after the ranks connected.

    Raises:
        ConfigError, DataError: a split can't be read, or not on this number of ranks.
    """
    source = find_source(config.data, splits, task)

    def gather_values(value: Any) -> list[Any]:
        return [unpack(packed)["value"] for packed in gather({"value": value}, trainer)]

    if not isinstance(task, pl.LightningModule):
        splits = splits if source is None else from_module(source, splits, topology, trainer)
        opener = Opener(config, topology, True, getattr(task, "prepare", None), report, source, gather_values)
        test = None if splits.test is None else opener.open_split(splits.test, "test")
        val = None if splits.val is None else opener.open_split(splits.val, "val")
        return RankSplits(opener.open_split(splits.train, "train"), val, test)
    if source is not None:
        return UserLoaders(None, None, None, source)
    opener = Opener(config, topology, False, None, report, None, gather_values)
    if is_overridden("train_dataloader", task):
        report(
            f"the train_dataloader of {type(task).__name__} is not used: data={config.data.name} replaces it; data=module uses it."
        )
    opened = {name: getattr(splits, name) for name in LOADERS}
    loaders = {name: None if one is None else opener.open_loader(one, name) for name, one in opened.items()}
    return UserLoaders(**loaders, source=task)


def find_source(
    data: Data, splits: Splits, task: object
) -> pl.LightningDataModule | pl.LightningModule | None:
    """Return the module or data module with the loaders, or None.

    Raises:
        ConfigError: the data is another object, or the module has no training loader.
    """
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


def from_module(
    module: pl.LightningDataModule | pl.LightningModule,
    splits: Splits,
    topology: Topology,
    trainer: pl.Trainer,
) -> Splits:
    """Return the loaders of a module for a native task, after calling its hooks once."""
    module.trainer = trainer
    if topology.rank == 0 or (topology.local_rank == 0 and module.prepare_data_per_node):
        module.prepare_data()
    trainer.strategy.barrier("prepare_data")
    module.setup("fit")
    train = module.train_dataloader()
    val = module.val_dataloader() if is_overridden("val_dataloader", module) else None
    test = None
    if is_overridden("test_dataloader", module):
        module.setup("test")
        test = module.test_dataloader()
    return replace(splits, train=train, val=val, test=test)


def takes_batch_size(kind: Any) -> bool:
    """Return whether a data module takes a batch_size, which is that of all ranks together."""
    module = isinstance(kind, type) and issubclass(kind, pl.LightningDataModule)
    return module and "batch_size" in inspect.signature(kind).parameters
