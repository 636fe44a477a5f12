"""The parts of the data that a run reads, and in which order: our own wherever rows can be taken by number."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import IterableDataset

from src.config.schema import Config
from src.data.base import DataSet, Splits
from src.data.batch import check_batch
from src.data.order import BatchOrder
from src.data.torch_foreign import length_of, readable, shares
from src.data.torch_loader import Batches
from src.data.torch_order import BareOrder
from src.data.torch_samples import Prepare, Reader, is_map_style
from src.distributed.topology import Topology
from src.errors import ConfigError
from src.tasks.base import Task
from src.training.lightning.loaders import OtherOrder, OwnOrder, Part, Several
from src.training.plan import batches_per_step


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
    """

    config: Config
    topology: Topology
    weighted: bool
    prepare: Prepare
    tell: Callable[[str], None]

    @property
    def _target(self) -> str:
        return f"data._target_={self.config.data.target['lightning']}"

    def part(self, split: Any, name: str) -> Part:
        """Of the part "train", "val" or "test".

        Raises:
            ConfigError: it can't be read, or not on so many ranks.
        """
        train = name == "train"
        if (
            isinstance(split, list | tuple)
            and split
            and not is_map_style(split[0])
            and hasattr(split[0], "__iter__")
        ):
            if train:
                raise ConfigError(
                    "the data gives several loaders to train from; give one, of a data set that joins them."
                )
            return Several([self.part(one, name) for one in split])
        if known := readable(split):
            order = self._order(known.batch_size * self.topology.world_size, known.shuffle)
            bare = BareOrder(order, train or known.drop_last, known.shuffle)
            reader = Reader(known.dataset, self.config.seed, self.prepare, known.collate)
            return self._own(reader, bare, known.workers, train, starts=split.worker_init_fn)
        if isinstance(split, DataSet) or is_map_style(split):
            order = self._order(self.config.data.batch_size, train)
            bare = BareOrder(order, drop_last=train, shuffle=train)
            return self._own(
                Reader(split, self.config.seed, self.prepare), bare, self.config.data.workers, train
            )
        if isinstance(split, CombinedLoader | dict) or not hasattr(split, "__iter__"):
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
        if isinstance(split, IterableDataset):
            ranks = self.topology.world_size
            split = torch.utils.data.DataLoader(split, batch_size=self.config.data.batch_size // ranks)
        if self.topology.world_size > 1 and not shares(split, self.topology.world_size):
            raise ConfigError(
                f"the {name} loader of {self._target} would give all {self.topology.world_size} ranks the same batches;"
                " return the data set itself, which is shared by the ranks, or a loader with a DistributedSampler."
            )
        key = "train" if name == "train" else name
        limit, length = getattr(self.config.trainer, f"limit_{key}_batches"), length_of(split)
        if length is None and self.config.trainer.fast_dev_run:
            length = 1
        if length is None:
            if not isinstance(limit, int):
                raise ConfigError(
                    f"the {name} loader of {self._target} does not say how many batches it has; use "
                    f"trainer.limit_{key}_batches=N."
                )
            length = limit
        if name == "train":
            stateful = hasattr(split, "state_dict") and hasattr(split, "load_state_dict")
            self.tell(
                "a resume asks the loader for its own position."
                if stateful
                else "a resume reads the batches of its epoch that were trained before, and skips them."
            )
        rank, seed = self.topology.rank, self.config.seed
        return OtherOrder(split, length, seed, rank, name == "train", self.weighted, self.prepare)


def open_parts(
    config: Config,
    splits: Splits,
    topology: Topology,
    task: Task | None,
    strategy: Strategy,
    tell: Callable[[str], None],
) -> Parts:
    """Each part as it is read.

    Args:
        task: the native one, or None for a module that computes its own loss.
        strategy: of ranks that know each other.

    Raises:
        ConfigError, DataError: what can't be read, or does not suit the ranks.
    """
    opener = Opener(config, topology, task is not None, getattr(task, "prepare", None), tell)
    module = splits.train if isinstance(splits.train, pl.LightningDataModule) else None
    if module:
        splits = from_module(module, splits, topology, strategy)
    elif splits.train is splits.val is splits.test:
        raise ConfigError(
            f"data._target_={config.data.target['lightning']} made a {type(splits.train).__qualname__}, which has no train and val "
            "and is no LightningDataModule."
        )
    test = None if splits.test is None else opener.part(splits.test, "test")
    val = None if splits.val is None else opener.part(splits.val, "val")
    return Parts(opener.part(splits.train, "train"), val, test, module)


def from_module(
    module: pl.LightningDataModule, splits: Splits, topology: Topology, strategy: Strategy
) -> Splits:
    """Prepare and set up a LightningDataModule, once, and ask for its loaders."""
    if topology.rank == 0 or (topology.local_rank == 0 and module.prepare_data_per_node):
        module.prepare_data()
    strategy.barrier("prepare_data")
    module.setup("fit")
    module.setup("test")
    module.prepare_data = lambda: None  # type: ignore[method-assign]
    module.setup = lambda stage: None  # type: ignore[method-assign]
    test = module.test_dataloader() if _gives(module, "test_dataloader") else None
    val = module.val_dataloader() if _gives(module, "val_dataloader") else None
    return Splits(module.train_dataloader(), val, test, splits.facts)


def _gives(module: pl.LightningDataModule, name: str) -> bool:
    return getattr(type(module), name) is not getattr(pl.LightningDataModule, name)
