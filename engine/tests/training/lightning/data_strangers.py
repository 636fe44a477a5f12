"""Data of every kind that people hand to a Trainer, for a module that reads (x, y)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from src.data.friedman import open_friedman

ROWS, VAL = 64, 32


def pairs(length: int) -> TensorDataset:
    """Rows with a number to predict."""
    x = torch.linspace(-1, 1, length * 8).reshape(length, 8)
    return TensorDataset(x, x.sum(1))


class Lit(pl.LightningModule):
    """Counts the rows of each validation and test loader."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.layer(batch[0]).squeeze(1) - batch[1]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_rows", float(len(batch[0])), reduce_fx="sum", batch_size=1)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("test_rows", float(len(batch[0])), reduce_fx="sum", batch_size=1)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return self.layer(batch[0])


class Stream(IterableDataset[Any]):
    """Rows one by one, without a length."""

    def __iter__(self) -> Iterator[Any]:
        yield from pairs(VAL)


def rows_of_a_stream() -> Any:
    """A stream to train from."""
    return {"train": Stream()}


class Own:
    """A user's data set."""

    def __len__(self) -> int:
        return VAL

    def __getitem__(self, index: int) -> Any:
        return pairs(VAL)[index]


class Buckets:
    """A user's batch sampler."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(8))
        yield list(range(8, VAL))


class WebLoader(IterableDataset[Any]):
    """Batches of a DataLoader, as webdataset hands them on."""

    def __init__(self) -> None:
        self.pipeline = [DataLoader(Stream(), 8)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipeline[0])


class Batches:
    """Anything with __iter__."""

    def __iter__(self) -> Iterator[Any]:
        return iter(DataLoader(pairs(VAL), 8))


def batches() -> Iterator[Any]:
    """A generator function."""
    yield from DataLoader(pairs(VAL), 8)


EVALUATED: dict[str, Any] = {
    "stream": lambda: DataLoader(Stream(), 8),
    "raw stream": Stream,
    "weighted": lambda: DataLoader(pairs(VAL), 8, sampler=WeightedRandomSampler([1.0] * VAL, VAL)),
    "buckets": lambda: DataLoader(pairs(VAL), batch_sampler=Buckets()),
    "web": WebLoader,
    "iterable": Batches,
    "generators": lambda: batches,
    "partial": lambda: partial(batches),
    "sets": lambda: [pairs(VAL), pairs(VAL)],
    "loaders": lambda: [DataLoader(pairs(VAL), 8), DataLoader(Stream(), 8), Batches()],
    "named": lambda: {"one": DataLoader(pairs(VAL), 8), "other": pairs(VAL)},
    "own": lambda: {"one": Own(), "other": Own()},
    "combined": lambda: CombinedLoader([DataLoader(pairs(VAL), 4), DataLoader(pairs(VAL), 8)], "sequential"),
    "rows": lambda: [(x, y) for x, y in pairs(VAL)],
}
"""Data to evaluate on, each of `VAL` rows in each of its loaders."""


def evaluated(kind: str) -> dict[str, Any]:
    """Return rows to train from, and a validation and a test of one kind."""
    return {"train": pairs(ROWS), "val": EVALUATED[kind](), "test": EVALUATED[kind]()}


def split_at_random() -> Any:
    """Return a list as torch's random_split does."""
    return random_split(pairs(ROWS + VAL), [ROWS, VAL], torch.Generator().manual_seed(1))


def once() -> dict[str, Any]:
    """A generator, which ends with its first pass."""
    return {"train": pairs(ROWS), "val": batches()}


def once_to_train() -> dict[str, Any]:
    """The same to train from."""
    return {"train": batches()}


def only_train() -> Dataset[Any]:
    """A data set by itself."""
    return pairs(ROWS)


def arrays(weights: bool = False) -> Any:
    """As in fit(x, y), numbers with 64 bits."""
    x, y = np.random.default_rng(0).normal(size=(ROWS + VAL, 8)), np.zeros(ROWS + VAL)
    more = (np.ones(ROWS + VAL),) if weights else ()
    return tuple(a[:ROWS] for a in (x, y, *more)), tuple(a[ROWS:] for a in (x, y, *more))


def tensors() -> Any:
    """The same in dicts of torch's tensors."""
    return {"train": pairs(ROWS).tensors, "validation": pairs(VAL).tensors}


class Boring(Lit):
    """Has loaders, and no data is named."""

    def prepare_data(self) -> None:
        self.prepared = self.trainer.world_size

    def setup(self, stage: str) -> None:
        self.rows = pairs(ROWS * self.prepared)

    def train_dataloader(self) -> Any:
        return DataLoader(self.rows, 16, shuffle=True)

    def val_dataloader(self) -> Any:
        return [DataLoader(pairs(VAL), 8), Batches()]

    def test_dataloader(self) -> Any:
        return DataLoader(pairs(VAL), 8)


class Dividing(pl.LightningDataModule):
    """Divides its batch size by the ranks, as lightning-hydra-template does."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.batch_size_per_device = batch_size

    def setup(self, stage: str | None = None) -> None:
        if self.trainer is not None:
            if self.hparams["batch_size"] % self.trainer.world_size != 0:
                raise RuntimeError(
                    f"{self.hparams['batch_size']} can't be divided by {self.trainer.world_size}"
                )
            self.batch_size_per_device = self.hparams["batch_size"] // self.trainer.world_size

    def train_dataloader(self) -> Any:
        return DataLoader(pairs(ROWS), self.batch_size_per_device, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(pairs(VAL), self.batch_size_per_device)


class NeedsTrainer(Dividing):
    """Asks for the Trainer wherever it can."""

    def prepare_data(self) -> None:
        assert self.trainer.world_size == 1

    def train_dataloader(self) -> Any:
        return DataLoader(pairs(ROWS), self.hparams["batch_size"] // self.trainer.world_size)


class Dying(Dataset[Any]):
    """Its second half ends the process that reads it, as the system does when memory runs out."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        import os
        import signal

        if index > ROWS // 2 and torch.utils.data.get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(8), torch.zeros(())


def dying() -> Any:
    """Data to train from that ends its readers."""
    return {"train": Dying()}


class Keeper:
    """An object that is not plain data."""


class Saves(Lit):
    """Adds an object to each checkpoint, and never asks for it."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint |= {"scaler": {"inner": Keeper()}, "count": 3, "batches": self.trainer.global_step}


class SavesAndLoads(Saves):
    """Reads it too."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        print(f"loaded {checkpoint['batches']} {type(checkpoint['scaler']['inner']).__name__}")


class SavingCallback(pl.Callback):
    """The same in a callback."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["scaler"] = Keeper()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None: ...


class OnlyTrains(pl.LightningModule):
    """Has no step to evaluate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0]).square().mean()

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return self(batch[0])


class OwnValidation(OnlyTrains):
    """Has loaders, two of them to validate."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self(batch[0]).mean())

    def train_dataloader(self) -> Any:
        return DataLoader(pairs(ROWS), 16)

    def val_dataloader(self) -> Any:
        return [DataLoader(pairs(VAL), 8), DataLoader(pairs(VAL), 8)]


class NoIndex(OwnValidation):
    """Does not take the number of a loader."""

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...


def tables(kind: str) -> dict[str, Any]:
    """Data for this project's own regression."""
    splits = open_friedman(ROWS, VAL, 0.1)
    rows = splits.val.columns, splits.val.targets
    loader = DataLoader(
        [dict(zip(("columns", "targets"), row, strict=True)) for row in zip(*rows, strict=True)], 8
    )
    kinds = {
        "none": None,
        "arrays": {"columns": rows[0], "targets": rows[1]},
        "loader": loader,
        "sampler": DataLoader(loader.dataset, batch_sampler=Buckets()),
    }
    return {"train": splits.train, "val": kinds[kind], "facts": splits.facts}


class Passing(Dividing):
    """Passes its batch size on as it is."""

    def setup(self, stage: str | None = None) -> None: ...


class Batched(IterableDataset[Any]):
    """A stream that gives batches, which Lightning takes as they are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(Batches())


class Streaming(Dividing):
    """Has a stream of batches instead of a loader."""

    def val_dataloader(self) -> Any:
        return Batched()
