"""The loaders of a user's module, continued at any batch."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.data import sized_len

from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.loader import BatchLoader
from train_anywhere.errors import DataError, iterate_causes, user_error
from train_anywhere.files.removal import print_once
from train_anywhere.training.lightning.checkpoint.rank_state import of_loader, to_tensor
from train_anywhere.training.lightning.loop.steps import is_last_batch, takes_iterator

Opens = Callable[[], Iterator[Any]]
"""A function that opens a loader and returns its batches."""


class Loader:
    """A user's loader as the Trainer reads it, with the attributes and the class of that loader.

    An iterator that user code opens by itself is one of the user's loader: it starts at the first batch.
    """

    def __init__(self, inner: Any, opens: Opens) -> None:
        vars(self).update(inner=inner, opens=opens)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the user's loader."""
        return type(vars(self)["inner"])

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["inner"], name, value)

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = vars(self)["opens"]()
        return batches


def read_batches(batches: Iterator[Any], between: Callable[[], None] = lambda: None) -> Iterator[Any]:
    """Yield the batches of an open loader, and call `between` before each one is read."""
    between()
    while batch := read_batch(batches):
        yield batch[0]
        between()


def wrap(loader: Any, opens: Opens) -> Any:
    """Return a `Loader`, whose class has the name and the length of the user's."""
    kind = type(loader)
    length = {"__len__": lambda self: len(vars(self)["inner"])} if hasattr(kind, "__len__") else {}
    return type(kind.__name__, (Loader,), {"__module__": kind.__module__, **length})(loader, opens)


def unwrap(loader: Any) -> Any:
    """Return the user's loader, also of a CombinedLoader that the Trainer has opened before."""
    return vars(loader)["inner"] if issubclass(type(loader), Loader) else loader


def read_batch(batches: Iterator[Any]) -> list[Any]:
    """Return the next batch in a list, empty at the end. Raises RuntimeError for a StopIteration of a row."""
    try:
        return [next(batches)]
    except StopIteration as end:
        if raised_by_row(end):
            raise user_error(end) from end
        return []


def raised_by_row(end: StopIteration) -> bool:
    """Return whether a row or a collate function raised StopIteration, here or in a worker: it is an error, not the data's end."""
    # Lightning catches it and raises another one
    ends = [error for error in iterate_causes(end) if isinstance(error, StopIteration)]
    names = {frame.f_code.co_qualname for one in ends for frame, _ in traceback.walk_tb(one.__traceback__)}
    readers = {"_MapDatasetFetcher.fetch", "ExceptionWrapper.reraise"}
    return bool(names & readers) or any(n.endswith(("__getitem__", "__getitems__")) for n in names)


class TrainingLoaders:
    """The user's training loaders that the Trainer has opened, and where they are.

    Args:
        between: called between two steps, before a batch is read. All of a step is over then: hooks, logged values, a validation.
    """

    def __init__(self, between: Callable[[], None]) -> None:
        self.between = between
        self.report: Callable[[str], None] = print_once
        self.places: list[Place] = []
        self.before: dict[int, Place] = {}
        self.saved: list[dict[str, Any]] = []

    def wrap(self, loader: Any, trainer: pl.Trainer) -> Any:
        """Return the loader that the Trainer reads. It may be one that was read before."""
        if isinstance(loader, BatchLoader):
            return wrap(loader, lambda: read_batches(iter(loader), self.between))
        if any(place.is_open for place in self.places):  # the Trainer loads them again
            self.before, self.places = {id(place.loader): place for place in self.places}, []
            for place in self.before.values():
                place.is_open, place.saved, place.at_start = False, None, None
        known = self.before.pop(id(loader), None)
        self.places.append(known or Place(loader, trainer, self))
        return wrap(loader, self.places[-1].open)

    @property
    def reads_ahead(self) -> bool:
        """Whether Lightning reads a batch before the step of the batch before: the end of a loader is not known."""
        trainer = self.places[0].trainer
        return trainer.num_training_batches == float("inf") and not takes_iterator(trainer)

    def state(self) -> list[dict[str, Any]]:
        """Return where the loaders are after the last batch trained. Empty for rows by index."""
        return [place.state() for place in self.places if place.is_open]

    def keep(self, saved: list[dict[str, Any]]) -> None:
        """Keep the state of a checkpoint of the same number of ranks, for `start_at`."""
        self.saved = saved

    def start_at(self, epoch: int, batches: int) -> None:
        """Continue at a batch of an epoch, as saved if `keep` has got a state."""
        for n, place in enumerate(self.places):
            place.start_at(self.saved[n] if n < len(self.saved) else {}, epoch, batches)

    def training_started(self) -> None:
        """Restore the samplers and data sets as they were at the end of an epoch: start hooks of the next one may change them."""
        for place in self.places:
            place._set_attributes(place.at_start)


class Place:
    """Where a training loader is.

    An iterator depends on the random states when it is opened and when its first batch is read, so a position holds both. A loader with a
    state of its own continues by that.
    """

    def __init__(self, loader: Any, trainer: pl.Trainer, loaders: TrainingLoaders) -> None:
        self.loader, self.trainer, self.loaders = loader, trainer, loaders
        self.attributes = of_loader(loader, loaders.report if trainer.is_global_zero else lambda line: None)
        self.is_open, self.passed = False, True
        # to restore: a position within an epoch, or the attributes between two epochs
        self.saved: dict[str, Any] | None = None
        self.at_start: torch.Tensor | None = None
        self.opened: list[Any] | None = None
        self.first: list[Any] | None = None
        self.ahead: list[Any] | None = None
        # batches of this iterator, and of the epoch: CombinedLoader may open a short loader again
        self.served = self.total = 0

    def start_at(self, saved: dict[str, Any], epoch: int, batches: int) -> None:
        """Continue at a batch of an epoch, from the next time that the loader is opened."""
        if batches and not saved.get("over"):
            self.saved = {"epoch": epoch, "served": batches, "total": batches} | saved
            self.passed = not saved.get("again")
        else:
            self.at_start = saved.get("attributes")

    def state(self) -> dict[str, Any]:
        """Return the position after the last batch trained."""
        attributes = self._attributes()
        if is_last_batch(self.trainer):  # the next epoch starts from the loader's first batch
            return {"over": True, "attributes": attributes}
        waits = self.loaders.reads_ahead and self.total > self.trainer.fit_loop.batch_idx + 1
        stateful = hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")
        return {
            "over": False,
            "again": self.total > self.served,
            "opened": self.opened,
            "first": self.first,
            "ahead": self.ahead if waits else None,
            "served": self.served - waits,
            "total": self.total - waits,
            "state": self.loader.state_dict() if stateful and not self.loaders.reads_ahead else None,
            "attributes": attributes,
        }

    def open(self) -> Iterator[Any]:
        """Return the batches of an epoch, from the position if one was saved."""
        saved, loader = self.saved, self.loader
        if not self.passed:
            return self._end()
        if self.trainer.fit_loop.batch_idx < 0:
            self.total = 0
        self.is_open, self.served = True, 0
        with random_states.preserve() if saved else nullcontext():
            if saved:
                set_epoch(loader, saved["epoch"])
                self._restore(saved.get("opened"))
                if saved.get("state") is not None:
                    loader.load_state_dict(saved["state"])
            self.opened = self._capture()
            return self._read(iter(loader), saved)

    def _end(self) -> Iterator[Any]:
        """Yield nothing, once: CombinedLoader then opens a loader again that had ended before in this epoch."""
        self.passed = True
        yield from ()

    def _read(self, batches: Iterator[Any], saved: dict[str, Any] | None) -> Iterator[Any]:
        ahead = []
        if saved is None:
            self.first = self._capture()
        else:
            self.saved = None
            with random_states.preserve():
                ahead = self._skip(batches, saved)
        yield from ahead
        again = saved is not None and saved.get("again") and not ahead
        agrees = self.trainer.world_size > 1 and sized_len(self.loader) is None
        agrees = agrees and not takes_iterator(self.trainer)
        while True:
            self.loaders.between()
            if self.loaders.reads_ahead:
                self.ahead = [random_states.pack(random_states.get_states()), None]
            found = read_batch(batches)
            if self._is_over(found) if agrees else not found:
                if again:  # the run was stopped at a further end of it: CombinedLoader opens it once more
                    yield from self.open()
                return
            again, self.served, self.total = False, self.served + 1, self.total + 1
            yield found[0]

    def _is_over(self, found: list[Any]) -> bool:
        """Return whether the loader of a rank has ended. All ranks raise DataError if one has no batch at all."""
        strategy = self.trainer.strategy
        own = torch.tensor([not found, not found and not self.served], device=strategy.root_device)
        ended, empty = strategy.reduce(own.int(), reduce_op="sum").tolist()  # type: ignore[union-attr]
        if empty:
            raise DataError(
                f"the training loader has no batch on {empty} of {self.trainer.world_size} ranks; give each rank rows of its own."
            )
        return bool(ended)

    def _skip(self, batches: Iterator[Any], saved: dict[str, Any]) -> list[Any]:
        """Skip the batches that are trained. Return the one that had been read ahead, if any."""
        self._restore(saved.get("first"))
        self.first, self.served, self.total = self._capture(), saved["served"], saved["total"]
        for _ in range(self.served if saved.get("state") is None else 0):
            next(batches, None)
        ahead = []
        self.ahead = saved.get("ahead")
        if self.ahead:
            self._restore(self.ahead)
            ahead = [next(batches)]
            self.served, self.total = self.served + 1, self.total + 1
        self._set_attributes(saved.get("attributes"))
        return ahead

    def _capture(self) -> list[Any]:
        states = random_states.pack(random_states.get_states())
        return [states, self._attributes()]

    def _restore(self, captured: list[Any] | None) -> None:
        if captured:
            random_states.restore(random_states.unpack(captured[0]))
            self._set_attributes(captured[1])

    def _attributes(self) -> torch.Tensor:
        """Return what has changed in the samplers and the data set since the loader was made."""
        return to_tensor(self.attributes.save())

    def _set_attributes(self, saved: torch.Tensor | None) -> None:
        if saved is not None:
            self.attributes.restore([saved.numpy().tobytes()])


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of a loader's samplers, as Lightning does."""
    inner: list[Any] = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    known: list[Any] = [inner[0], getattr(inner[1], "sampler", None)]
    for sampler in {id(one): one for one in known}.values():
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)
