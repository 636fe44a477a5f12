"""Loaders of the user: read their settings, and resume a stream of their batches at any position."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from train_anywhere.data.array_data import leaves
from train_anywhere.data.dataset import DataSet
from train_anywhere.data.order.row_check import CHECKED, RowHashes, refuse_equal_rows
from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.samples import is_map_style
from train_anywhere.errors import DataError, iterate_causes, user_error


class LoaderSettings(NamedTuple):
    """The settings of a DataLoader whose data set can be read in this project's order instead."""

    dataset: Any
    batch_size: int  # of one rank
    shuffle: bool
    drop_last: bool
    collate: Any
    workers: int


def read_settings(loader: object) -> LoaderSettings | None:
    """Return the settings of a DataLoader with torch's own samplers over a map-style data set; None for anything else."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    sampler, batches = loader.sampler, loader.batch_sampler
    if loader.batch_size is None or type(batches) is not BatchSampler:
        return None
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        shuffle = True
    elif type(sampler) is DistributedSampler:
        shuffle = sampler.shuffle
    elif type(sampler) is SequentialSampler:
        shuffle = False
    else:
        return None
    return LoaderSettings(
        loader.dataset, loader.batch_size, shuffle, loader.drop_last, loader.collate_fn, loader.num_workers
    )


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


def samplers(loader: Any) -> list[Any]:
    """Return all objects that may have `set_epoch`: a loader, its samplers and its data set."""
    inner = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    found = [loader, *inner, getattr(inner[1], "sampler", None)]
    return [s for s in found if s is not None]


def is_sharded(loader: Any, ranks: int) -> bool:
    """Return whether the loader reads a different part on each of `ranks` ranks."""
    return any(
        getattr(s, "num_replicas", None) == ranks and hasattr(s, "set_epoch") for s in samplers(loader)
    )


def lists_shards(value: Any, depth: int = 6) -> list[str]:
    """Return the names in all lists that a stream holds, such as its shards: ranks with different ones have split it already."""
    if depth == 0 or isinstance(value, type) or callable(value):
        return []
    if isinstance(value, list | tuple) and all(isinstance(one, str | os.PathLike) for one in value):
        return [*map(str, value)]
    if isinstance(value, list | tuple | dict):
        inner = [*(value.values() if isinstance(value, dict) else value)]
    else:
        inner = [*getattr(value, "__dict__", {}).values()]
    return [name for one in inner for name in lists_shards(one, depth - 1)]


def split_stream(loader: Any, rank: int, ranks: int, own: bool = False) -> Any:
    """Return a loader of a stream with the rows of one rank; None if no way to split it is known, unless each rank has its `own`.

    Known are `shard(num_shards, index)` of Hugging Face's IterableDataset and others with enough shards, webdataset's pipelines, and the
    libraries that split by themselves in each process: litdata and MosaicML Streaming.
    """
    stream = loader.dataset if isinstance(loader, DataLoader) else loader
    library = sys.modules.get("webdataset")
    count = getattr(stream, "num_shards", getattr(stream, "n_shards", 0))
    if any(kind.__module__.partition(".")[0] in ("litdata", "streaming") for kind in type(stream).__mro__):
        return loader
    own = own or getattr(stream, "_distributed", None) is not None  # split_dataset_by_node of Hugging Face
    if library and isinstance(getattr(stream, "pipeline", None), list):
        stages = [one for one in stream.pipeline if one is not library.shardlists.single_node_only]
        if library.split_by_node not in stages and not own:
            stages.insert(1, library.split_by_node)
        stream.pipeline[:] = stages
        return loader
    if own:
        return loader
    if not (hasattr(stream, "shard") and isinstance(count, int) and count >= ranks):
        return None
    part = stream.shard(num_shards=ranks, index=rank)
    if not isinstance(loader, DataLoader):
        return part
    vars(loader)["dataset"] = part  # by its name, DataLoader refuses it for the sake of samplers
    return loader


@dataclass(frozen=True)
class Ranks:
    """This rank among those that share a stream.

    Attributes:
        rank, world_size: its number, and the number of all.
        gather: returns the values of all ranks; all ranks call it at the same batch.
        own_split: whether each rank reads rows of its own without our help, which is checked.
    """

    rank: int = 0
    world_size: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    own_split: bool = False


def batch_count(loader: Any) -> int | None:
    """Return the number of batches of a pass; None if the loader has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def raised_by_row(end: StopIteration) -> bool:
    """Return whether a row or a collate function raised StopIteration, here or in a worker: it is an error, not the data's end."""
    # Lightning catches it and raises another one
    ends = [error for error in iterate_causes(end) if isinstance(error, StopIteration)]
    names = {frame.f_code.co_qualname for one in ends for frame, _ in traceback.walk_tb(one.__traceback__)}
    readers = {"_MapDatasetFetcher.fetch", "ExceptionWrapper.reraise"}
    return bool(names & readers) or any(n.endswith(("__getitem__", "__getitems__")) for n in names)


class Stream:
    """The batches of a loader, epoch after epoch, with separate random states.

    Its random numbers depend only on (seed, epoch, rank), so a resumed epoch continues with the same batches: the loader's own state
    is restored if it has one, otherwise the earlier batches are read and dropped.

    On several ranks, one whose loader ends before `batches` continues with rows of weight 0, so no rank waits for another.

    Args:
        loader: an iterable of `Batch` on several ranks, else any iterable.
        seed: the seed of the run.
        ranks: this process's rank.
        batches: number of batches in an epoch, the same on all ranks; None: all.
        start: epoch and number of the first batch.
        train: whether it is an error if no rank has `batches`.

    Attributes:
        sampler: the object whose `set_epoch` Lightning calls.
        state: the restored state of a loader that has one.
    """

    def __init__(
        self,
        loader: Any,
        seed: int,
        ranks: Ranks,
        batches: int | None,
        start: tuple[int, int],
        train: bool = True,
    ) -> None:
        self.loader, self.seed, self.ranks, self.batches, self.train = loader, seed, ranks, batches, train
        self.epoch, self.start = start[0], start
        self.sampler = self
        self.batch_sampler = None  # Lightning reads it from validation loaders that have a sampler
        self.state: dict[str, Any] | None = None
        self._random: Any = None

    @property
    def stateful(self) -> bool:
        """True if the loader saves its own position."""
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def position(self) -> dict[str, Any]:
        """Return the position after the last batch, for `restore`; {} for a loader without a state."""
        if not (self.stateful and self._random):
            return {}
        return {"loader": self.loader.state_dict(), "random": random_states.pack(self._random)}

    def restore(self, position: dict[str, Any]) -> None:
        """Start the next iteration at a position."""
        self.state = position or None

    def __len__(self) -> int:
        if self.batches is None:
            raise TypeError("the loader has no length")
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        for sampler in samplers(self.loader):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)
        first = self.start[1] if self.epoch == self.start[0] else 0
        restored, self.state = (self.state, None) if first else (None, None)
        outside = random_states.get_states()
        random_states.reseed(self.seed, self.epoch, self.ranks.rank)
        if restored:
            self.loader.load_state_dict(restored["loader"])
        inner = iter(self.loader)
        if restored:
            random_states.restore(random_states.unpack(restored["random"]))
        else:
            for _ in range(first):
                next(inner, None)
        self._random = random_states.get_states()
        random_states.restore(outside)
        if self.ranks.world_size == 1 or self.batches is None:
            yield from self._rest(inner, first)
        else:
            yield from self._agreed(self._rest(inner, first), first, self.batches)

    def _agreed(self, rest: Iterator[Any], given: int, batches: int) -> Iterator[Any]:
        """Yield the rest up to `batches`, then rows of weight 0; compare the ranks' rows and, before the last batch, their ends."""
        seen, batch, ended = RowHashes() if self.ranks.own_split and self.train else None, None, False
        for number in range(given + 1, batches + 1):
            following = None if ended else next(rest, None)
            ended = following is None
            batch = batch if following is None else following
            if batch is None and (batch := next(iter(self.loader), None)) is None:
                raise DataError(
                    f"the loader of rank {self.ranks.rank} has no batch; use more shards than ranks, or fewer ranks."
                )
            if ended:
                batch = batch._replace(weight=batch.weight * 0)
            elif seen and number <= given + CHECKED[-1]:
                seen.add([value.numpy() for value in leaves(batch.rows)])
            if seen and number - given in CHECKED:
                refuse_equal_rows(self.ranks.gather(seen.smallest), number - given)
            if number == batches and self.train and (most := max(self.ranks.gather(self.given))) < batches:
                raise self._too_few(most)
            yield batch

    def _rest(self, inner: Iterator[Any], given: int) -> Iterator[Any]:
        again = self.stateful and not given  # litdata's loader stands at its end after a restored epoch
        self.given = given
        while self.batches is None or given < self.batches:
            outside = random_states.get_states()
            random_states.restore(self._random)
            try:
                batch = next(inner)
            except StopIteration as end:
                if raised_by_row(end):
                    raise user_error(end) from end
                if given or not again:
                    break
                again, inner = False, iter(self.loader)
                continue
            finally:
                self._random = random_states.get_states()
                random_states.restore(outside)
            given += 1
            self.given = given
            yield batch
        if not given and hasattr(self.loader, "__next__"):
            raise DataError(
                f"a {type(self.loader).__name__} can be read once only, and epoch {self.epoch + 1} reads it again; return the function "
                "that makes it."
            )
        if self.batches is not None and given < self.batches and self.ranks.world_size == 1:
            raise self._too_few(given)

    def _too_few(self, given: int) -> DataError:
        return DataError(
            f"the loader ended after {given} batches, but {self.batches} were expected; use "
            f"trainer.limit_train_batches={given}."
        )
