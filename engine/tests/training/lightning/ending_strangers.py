"""A module, a callback and data that raise what a loop takes for an end."""

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException, _TunerExitException
from torch.utils.data import DataLoader, Dataset, IterableDataset

RAISED: dict[str, Any] = {
    "StopIteration": lambda: next(iter([])),
    "StopAsyncIteration": StopAsyncIteration,
    "SystemExit": SystemExit,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "_TunerExitException": _TunerExitException,
    "SIGTERMException": SIGTERMException,
}


def misbehave(name: str) -> None:
    raise RAISED[name]()


class Ends(pl.LightningModule):
    """Raises an exception in its second step, if any."""

    def __init__(self, raises: str = "") -> None:
        super().__init__()
        self.raised, self.network = raises, torch.nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        if index == 1 and self.raised:
            misbehave(self.raised)
        return self.network(batch).mean()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val_loss", self.network(batch).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Reads(Ends):
    """Takes the iterator over the batches and ends an epoch or a validation after two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = {"train": 0, "val": 0}

    def read(self, part: str, batches: Iterator[Any]) -> torch.Tensor:
        if self.batches[part] == 2:
            raise StopIteration
        self.batches[part] += 1
        return self.network(next(batches)[0]).mean()

    def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:
        return self.read("train", dataloader_iter)

    def validation_step(self, dataloader_iter: Iterator[Any]) -> None:
        self.log("val_loss", self.read("val", dataloader_iter), batch_size=8)


class Rows(Dataset[torch.Tensor]):
    """Rows of which one raises an exception."""

    def __init__(self, raises: str = "") -> None:
        self.raised = raises

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 19 and self.raised:
            misbehave(self.raised)
        return torch.ones(2)


def rows(raises: str = "", part: str = "train") -> dict[str, Any]:
    return {"train": Rows(), "val": Rows()} | {part: Rows(raises)}


def collated(raises: str) -> dict[str, Any]:
    def collate(batch: list[torch.Tensor]) -> None:
        misbehave(raises)

    return {"train": Rows(), "val": DataLoader(Rows(), batch_size=8, collate_fn=collate)}


class Odd(torch.utils.data.Sampler[int]):
    """An order that only its loader knows."""

    def __len__(self) -> int:
        return 32

    def __iter__(self) -> Any:
        return iter(range(32))


def loaders(raises: str, processes: int = 0) -> dict[str, Any]:
    """A validation in the loader's own order."""
    loader = DataLoader(Rows(raises), batch_size=8, sampler=Odd(), num_workers=processes)
    return {"train": Rows(), "val": loader}


class Counted:
    """An iterator that ends as iterators do."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> torch.Tensor:
        self.given += 1
        if self.given > 3:
            raise StopIteration
        return torch.ones(8, 2)


class Iterable(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Counted:
        return Counted()


def streams() -> dict[str, Any]:
    return {"train": Rows(), "val": DataLoader(Iterable(), batch_size=None)}


class Learns(pl.LightningModule):
    """Learns nothing, or little, in the way `how` names."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.automatic_optimization = how, "by hand" not in how
        self.network, self.other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> Any:
        if self.how == "by hand":
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.network(batch).mean().backward()
            optimizer.step()
        if self.how == "a metric called step":
            self.log("step", 5.0)
            self.log("epoch", 7.0)
            self.log("lr", 3.0)
        skips = self.how == "skips all" or (self.how == "skips one" and index == 1)
        return None if skips or self.how.startswith("by hand") else self.network(batch).mean()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.how == "leaves each epoch" else None

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        if self.how == "no optimizer":
            return None
        trained = self.other if self.how == "the parameters of another" else self.network
        return torch.optim.SGD(trained.parameters(), lr=0.1)


def gaps() -> dict[str, Any]:
    """A loader that gives no batch, only None."""

    def some(batch: list[torch.Tensor]) -> Any:
        return None

    return {"train": DataLoader(Rows(), batch_size=8, collate_fn=some), "val": Rows()}
