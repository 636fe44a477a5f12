"""A loader that someone else made: what is known of it, and a stream of its batches that begins anywhere."""

import traceback
from collections.abc import Iterator
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

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.torch import draws as draws
from train_anywhere.data.torch.samples import is_map_style
from train_anywhere.errors import DataError, user_error


class Readable(NamedTuple):
    """A DataLoader of which all is known: it can be read in an order of our own."""

    dataset: Any
    batch_size: int  # of one rank
    shuffle: bool
    drop_last: bool
    collate: Any
    workers: int


def readable(loader: object) -> Readable | None:
    """What a DataLoader does, if torch's own samplers do it over a map-style data set; None for anything else."""
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
    return Readable(
        loader.dataset, loader.batch_size, shuffle, loader.drop_last, loader.collate_fn, loader.num_workers
    )


def is_source(value: object, named: bool = False) -> bool:
    """Return whether a value in a list, or `named` in a dict, is a data set or a loader of its own, and not a row."""
    if isinstance(value, Dataset | DataSet) or hasattr(value, "__getitems__"):
        return True
    if isinstance(value, dict | list | tuple | str) or hasattr(value, "__array__"):
        return False
    return named if is_map_style(value) else hasattr(value, "__iter__")


def gives_batches(stream: IterableDataset[Any]) -> bool:
    """Return whether a stream reads from a DataLoader, as webdataset's WebLoader does: then it has batches, not rows."""
    inner = [v for value in vars(stream).values() for v in (value if isinstance(value, list) else [value])]
    return any(isinstance(value, DataLoader) for value in inner)


def samplers(loader: Any) -> list[Any]:
    """The sampler of a loader and of its batches, where it has them, and its data set: whatever may take an epoch."""
    inner = [
        getattr(loader, "sampler", None),
        getattr(loader, "batch_sampler", None),
        getattr(loader, "dataset", None),
    ]
    found = [loader, *inner, getattr(inner[1], "sampler", None)]
    return [s for s in found if s is not None]


def shares(loader: Any, ranks: int) -> bool:
    """Whether each of so many ranks reads a part of its own."""
    return any(
        getattr(s, "num_replicas", None) == ranks and hasattr(s, "set_epoch") for s in samplers(loader)
    )


def length_of(loader: Any) -> int | None:
    """Batches of a pass, None if it does not say."""
    try:
        return len(loader)
    except TypeError:
        return None


def of_rows(end: StopIteration) -> bool:
    """Whether a data set's row raised it, here or in a worker: only an iterator may end that way."""
    names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(end.__traceback__)}
    return bool(names & {"__getitem__", "__getitems__", "reraise"})


class Stream:
    """The batches of a loader, epoch after epoch, with random numbers of their own.

    What it draws at random depends on (seed, epoch, rank) alone, so the first epoch after a resume begins with the batches it would have
    had: the loader's own state is restored if it keeps one, otherwise the batches before are read and dropped.

    Args:
        loader: any iterable.
        batches: of an epoch; None: as many as there are.
        start: epoch and batch to begin with.

    Attributes:
        sampler: Lightning asks it for `set_epoch`.
        state: of a loader that keeps one, as it was restored.
    """

    def __init__(
        self, loader: Any, seed: int, rank: int, batches: int | None, start: tuple[int, int]
    ) -> None:
        self.loader, self.seed, self.rank, self.batches = loader, seed, rank, batches
        self.epoch, self.start = start[0], start
        self.sampler = self
        self.batch_sampler = None  # Lightning reads it of a validation's loader that has a sampler
        self.state: dict[str, Any] | None = None
        self._random: Any = None

    @property
    def stateful(self) -> bool:
        """Whether the loader keeps its position itself."""
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def position(self) -> dict[str, Any]:
        """What `restore` takes, after the batch that was given last."""
        return (
            {"loader": self.loader.state_dict(), "random": draws.packed(self._random)}
            if self.stateful and self._random
            else {}
        )

    def restore(self, position: dict[str, Any]) -> None:
        """Begin at a position."""
        self.state = position or None

    def __len__(self) -> int:
        if self.batches is None:
            raise TypeError("the loader does not say how many batches it has")
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        for sampler in samplers(self.loader):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)
        first = self.start[1] if self.epoch == self.start[0] else 0
        restored, self.state = (self.state, None) if first else (None, None)
        outside = draws.states()
        draws.begin(self.seed, self.epoch, self.rank)
        if restored:
            self.loader.load_state_dict(restored["loader"])
        inner = iter(self.loader)
        if restored:
            draws.restore(draws.unpacked(restored["random"]))
        else:
            for _ in range(first):
                next(inner, None)
        self._random = draws.states()
        draws.restore(outside)
        yield from self._rest(inner, first)

    def _rest(self, inner: Iterator[Any], given: int) -> Iterator[Any]:
        while self.batches is None or given < self.batches:
            outside = draws.states()
            draws.restore(self._random)
            try:
                batch = next(inner)
            except StopIteration as end:
                if of_rows(end):
                    raise user_error(end) from end
                break
            finally:
                self._random = draws.states()
                draws.restore(outside)
            given += 1
            yield batch
        if not given and hasattr(self.loader, "__next__"):
            raise DataError(
                f"a {type(self.loader).__name__} can be read once only, and epoch {self.epoch + 1} reads it again; return the function "
                "that makes it."
            )
        if self.batches is not None and given < self.batches:
            raise DataError(
                f"the loader ended after {given} batches, and {self.batches} were expected; use "
                f"trainer.limit_train_batches={given}."
            )
