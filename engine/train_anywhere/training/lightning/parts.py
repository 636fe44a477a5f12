"""The parts of the data that a run reads, and in which order: our own wherever rows can be taken by number."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset

from train_anywhere.config.limits import MOST
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import DataSet, ModuleLoaders, Splits
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.fits import check_batch
from train_anywhere.data.torch.loader import Batches
from train_anywhere.data.torch.samples import Prepare, Reader, is_map_style
from train_anywhere.data.torch.unpadded import BareOrder
from train_anywhere.data.torch.user_loader import gives_batches, is_source, length_of, readable, shares
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.batches import OtherOrder, OwnOrder, Part, Several
from train_anywhere.training.lightning.loop.fast_loop import overrides
from train_anywhere.training.plan import batches_per_step


@dataclass(frozen=True)
class Parts:
    """This rank's batches of each part; there may be no test, and a LightningDataModule may have no validation.

    Attributes:
        datamodule: that brings them, for its hooks.
    """

    train: Part
    val: Part | None
    test: Part | None
    datamodule: pl.LightningDataModule | None = None


@dataclass(frozen=True)
class Opener:
    """Turns what a data set returned into parts.

    Attributes:
        prepare: of a native task.
        weighted: a native task counts by weight.
        tell: prints a line, on rank 0.
        source: the data module or module whose hooks gave the loaders, if any.
    """

    config: Config
    topology: Topology
    weighted: bool
    prepare: Prepare
    tell: Callable[[str], None]
    source: pl.LightningDataModule | pl.LightningModule | None = None

    @property
    def _target(self) -> str:
        return f"data._target_={self.config.data.target['lightning']}"

    def part(self, split: Any, name: str) -> Part:
        """Of the part "train", "val" or "test".

        Raises:
            ConfigError: it can't be read, or not on so many ranks.
        """
        train = name == "train"
        if inner := several(split):
            if train:
                raise ConfigError(
                    "the data gives several loaders to train from; give one, of a data set that joins them."
                )
            return Several([self.part(one, name) for one in inner])
        if known := readable(split):
            ranks, each = self.topology.world_size, known.batch_size
            if each == self.config.data.batch_size and takes_batch_size(type(self.source)):
                each //= ranks
            order = self._order(each * ranks, known.shuffle)
            bare = BareOrder(order, train or known.drop_last, known.shuffle)
            reader = Reader(known.dataset, self.config.seed, self.prepare, known.collate)
            if train and (ranks > 1 or each != self.config.data.batch_size):
                self.tell(f"batch {each} per rank, {each * ranks} in all: data comes from your DataLoader.")
            return self._own(reader, bare, known.workers, train, starts=split.worker_init_fn)
        if isinstance(split, DataSet) or is_map_style(split):
            order = self._order(self.config.data.batch_size, train)
            bare = BareOrder(order, drop_last=train, shuffle=train)
            return self._own(
                Reader(split, self.config.seed, self.prepare), bare, self.config.data.workers, train
            )
        if isinstance(split, dict) or not hasattr(split, "__iter__"):
            raise ConfigError(
                f"the {name} part of {self._target} is a {type(split).__qualname__}, which is neither a data set (__len__ and __getitem__ "
                "or read) nor a loader (__iter__)."
            )
        return self._other(split, name)

    def _order(self, batch_size: int, shuffle: bool) -> BatchOrder:
        t = self.topology
        return BatchOrder(batch_size, self.config.seed, t.rank, t.world_size, shuffle)

    def _own(self, reader: Reader, bare: BareOrder, workers: int, train: bool, starts: Any = None) -> Part:
        length, order = len(reader.dataset), bare.order
        check_batch(length, order.batch_size, order.world_size, train)
        left = length % order.batch_size
        if train and left and not self.weighted:
            self.tell(
                f"each epoch leaves out {left} of {length} rows, in a new order: the last batch would not be whole."
            )
        weighted = replace(order, accumulate=batches_per_step(self.config.trainer)) if train else order
        return OwnOrder(Batches(reader, weighted if self.weighted else bare, train), workers, starts)

    def _other(self, split: Any, name: str) -> Part:
        """A loader of which nothing is known."""
        evaluates, ranks = name != "train", self.topology.world_size
        if isinstance(split, IterableDataset) and self.source is None and not gives_batches(split):
            rows, kind = self.config.data.batch_size // ranks, type(split).__name__
            if not evaluates:
                self.tell(
                    f"batch {rows}, from the rows of a {kind}; one that gives batches needs DataLoader(..., batch_size=None)."
                )
            split = DataLoader(split, batch_size=rows)
        if ranks > 1 and not shares(split, ranks):
            raise ConfigError(
                f"the {name} loader of {self._target} would give all {ranks} ranks the same batches;"
                " return the data set itself, which is shared by the ranks, or a loader with a DistributedSampler."
            )
        if ranks > 1 and not evaluates:
            self.tell(
                f"each step reads a batch of the loader on each of {ranks} ranks: more ranks, fewer and larger steps."
            )
        if evaluates and hasattr(split, "__next__"):
            raise ConfigError(
                f"the {name} loader of {self._target} is a {type(split).__name__}, which can be read once only; return the function that "
                "makes it."
            )
        limit, length = getattr(self.config.trainer, f"limit_{name}_batches"), length_of(split)
        if length is None and self.config.trainer.fast_dev_run:
            length = 1
        if length is None and evaluates and ranks == 1 and isinstance(limit, float) and limit == 1:
            length = MOST  # it is read to its end
        if length is None:
            if not isinstance(limit, int):
                raise ConfigError(
                    f"the {name} loader of {self._target} does not say how many batches it has; use "
                    f"trainer.limit_{name}_batches=N."
                )
            length = limit
        if not evaluates:
            stateful = hasattr(split, "state_dict") and hasattr(split, "load_state_dict")
            self.tell(
                "a resume asks the loader for its own position."
                if stateful
                else "a resume reads the batches of its epoch that were trained before, and skips them."
            )
        rank, seed = self.topology.rank, self.config.seed
        return OtherOrder(split, length, seed, rank, not evaluates, self.weighted, self.prepare)


def several(split: Any) -> list[Any]:
    """Return the loaders or data sets in a list, tuple, dict or CombinedLoader; none for a single one."""
    if isinstance(split, CombinedLoader):
        return list(split.flattened)
    inner, named = (split.values(), True) if isinstance(split, dict) else (split, False)
    several = isinstance(split, dict | list | tuple) and all(is_source(one, named) for one in inner)
    return [*inner] if several else []


def open_parts(
    config: Config,
    splits: Splits,
    topology: Topology,
    made: Task | pl.LightningModule,
    trainer: pl.Trainer,
    tell: Callable[[str], None],
) -> Parts:
    """Each part as it is read.

    Args:
        made: a native task, or a module that computes its own loss.
        trainer: of ranks that know each other.

    Raises:
        ConfigError, DataError: what can't be read, or does not suit the ranks.
    """
    native = not isinstance(made, pl.LightningModule)
    source, splits = loaders_of(config, splits, made, topology, trainer)
    opener = Opener(
        config, topology, native, getattr(made, "prepare", None) if native else None, tell, source
    )
    if not native and overrides(made, "train_dataloader") and source is not made:
        tell(
            f"the train_dataloader of {type(made).__name__} is not used: data={config.data.name} wins; data=module uses it."
        )
    test = None if splits.test is None else opener.part(splits.test, "test")
    val = None if splits.val is None else opener.part(splits.val, "val")
    datamodule = source if isinstance(source, pl.LightningDataModule) else None
    return Parts(opener.part(splits.train, "train"), val, test, datamodule)


def loaders_of(
    config: Config, splits: Splits, made: object, topology: Topology, trainer: pl.Trainer
) -> tuple[Any, Splits]:
    """Return the data module, or the module itself, whose loaders are read, or None; and the splits, which they are then.

    Raises:
        ConfigError: the data is another object, or the module has no loader to train from.
    """
    source = made if isinstance(splits.train, ModuleLoaders) else splits.train
    if isinstance(source, pl.LightningDataModule | pl.LightningModule) and overrides(
        source, "train_dataloader"
    ):
        return source, from_module(source, splits, topology, trainer)
    if source is made:
        raise ConfigError(
            f"data=module reads the loaders of a LightningModule, and {type(made).__name__} has no train_dataloader; name the data, "
            "such as data._target_=mine.open_data."
        )
    if splits.train is splits.val is splits.test:
        raise ConfigError(
            f"data._target_={config.data.target['lightning']} made a {type(source).__qualname__}, which has no train and is no data "
            "set, loader or LightningDataModule."
        )
    return None, splits


def from_module(
    module: pl.LightningDataModule | pl.LightningModule,
    splits: Splits,
    topology: Topology,
    trainer: pl.Trainer,
) -> Splits:
    """Prepare and set up what has the hooks of data, once, with its Trainer as in Lightning, and ask for its loaders."""
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
    """Return whether a class is a LightningDataModule with an argument batch_size, which is then that of all ranks together."""
    module = isinstance(kind, type) and issubclass(kind, pl.LightningDataModule)
    return module and "batch_size" in inspect.signature(kind).parameters
