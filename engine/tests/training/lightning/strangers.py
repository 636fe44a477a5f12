"""Modules and data sets of users that work with a plain Trainer."""

import os
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import MeanSquaredError

ROWS, VAL = 100, 37


class Rows(Dataset[dict[str, Any]]):
    """Dicts with a string. With `noise` each read of a row differs."""

    def __init__(self, length: int, seed: int = 0, noise: float = 0.0) -> None:
        random = np.random.default_rng([7, seed])
        self.x = random.standard_normal((length, 4)).astype(np.float32)
        self.y = (self.x @ np.array([1.0, -2.0, 0.5, 3.0], np.float32))[:, np.newaxis]
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.from_numpy(self.x[index])
        if self.noise:
            x = x + self.noise * (torch.randn(4) + float(np.random.rand()))
        return {"x": x, "y": torch.from_numpy(self.y[index]), "name": f"row {index}"}


def rows(noise: float = 0.0) -> dict[str, Any]:
    """A data set as a mapping."""
    return {"train": Rows(ROWS, noise=noise), "val": Rows(VAL, 1), "test": Rows(VAL, 2)}


def untested() -> dict[str, Any]:
    """The same without a test."""
    return {"train": Rows(ROWS), "val": Rows(VAL, 1)}


class Plain(pl.LightningModule):
    """A step, metrics by log_dict, and whatever optimizer it is given."""

    def __init__(self, hidden: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Linear(4, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        assert all(name.startswith("row ") for name in batch["name"])
        loss = functional.mse_loss(self(batch["x"]), batch["y"])
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        error = self(batch["x"]) - batch["y"]
        self.log_dict(
            {"val_loss": error.square().mean(), "val_mae": error.abs().mean()}, batch_size=len(error)
        )
        self.log("for_callbacks", error.abs().max(), logger=False, reduce_fx="max")

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("test_loss", functional.mse_loss(self(batch["x"]), batch["y"]))


class Plateau(Plain):
    """A schedule that watches a metric of the training, with no patience."""

    watched = "train_loss"

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02)
        schedule = ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": self.watched}}


class Adversaries(pl.LightningModule):
    """Two optimizers by hand, one of them with a schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        first, second = self.optimizers()
        noise = self.one(torch.randn_like(batch["x"]))
        self.toggle_optimizer(second)
        judged = functional.softplus(self.other(noise.detach())) + functional.softplus(
            -self.other(batch["x"])
        )
        second.zero_grad()
        self.manual_backward(judged.mean())
        second.step()
        self.untoggle_optimizer(second)
        self.toggle_optimizer(first)
        fooled = functional.softplus(-self.other(noise)).mean()
        first.zero_grad()
        self.manual_backward(fooled)
        first.step()
        self.untoggle_optimizer(first)
        self.log_dict({"one_loss": fooled, "other_loss": judged.mean()})
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("val_score", self.other(batch["x"]).mean(), batch_size=len(batch["x"]))

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.one.parameters(), lr=0.01, betas=(0.5, 0.9))
        second = torch.optim.SGD(self.other.parameters(), lr=0.05, momentum=0.9)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(second, 0.9)]


class Measured(Plain):
    """Metrics of torchmetrics: as an object, and by compute in a hook."""

    def __init__(self, hidden: int = 8, dropout: float = 0.0) -> None:
        super().__init__(hidden, dropout)
        self.of_train, self.of_val = MeanSquaredError(), MeanSquaredError()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        predicted = self(batch["x"])
        self.of_train(predicted, batch["y"])
        self.log("train_mse", self.of_train, on_step=False, on_epoch=True)
        return functional.mse_loss(predicted, batch["y"])

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.of_val.update(self(batch["x"]), batch["y"])

    def on_validation_epoch_end(self) -> None:
        self.log("val_mse", self.of_val.compute())
        self.of_val.reset()


class Unequal(Plain):
    """Logs another name on each rank: a mistake."""

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log(f"val_of_{self.global_rank}", batch["x"].mean())


class Drifting(Plain):
    """Changes its weights in another way on each rank: a mistake."""

    def on_train_batch_end(self, *args: Any) -> None:
        with torch.no_grad():
            self.layers[0].bias += 0.01 * self.global_rank


class Watch(pl.Callback):
    """A callback whose state is not a plain value."""

    def state_dict(self) -> dict[str, Any]:
        return {"seen": object}


class Module(pl.LightningDataModule):
    """A data module with its own loaders."""

    def __init__(self, batch_size: int = 3, shuffle: bool = True) -> None:
        super().__init__()
        self.batch_size, self.shuffle, self.moved = batch_size, shuffle, 0

    def setup(self, stage: str) -> None:
        self.parts = rows()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts["train"], self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts["val"], self.batch_size)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.moved += 1
        return batch


class Endless(IterableDataset[dict[str, Any]]):
    """Random rows without a length."""

    def __iter__(self) -> Any:
        rows = Rows(ROWS)
        while True:
            yield rows[int(torch.randint(ROWS, ()))]


def endless() -> tuple[Any, Any]:
    """A stream to train from, and loaders of rows for the rest."""
    return DataLoader(Endless(), batch_size=10), Rows(VAL, 1)


class Part(IterableDataset):
    """The first rows of a data set, as many as this rank has; with a length if `sized`."""

    def __init__(self, ranks: list[int], sized: bool) -> None:
        self.count = ranks[int(os.environ.get("RANK", "0"))]
        if sized:
            self.__class__ = type("Sized", (Part,), {"__len__": lambda self: self.count})

    def __iter__(self) -> Any:
        return iter([Rows(40)[n] for n in range(self.count)])


def uneven(ranks: list[int], sized: bool = False) -> tuple[Any, Any]:
    """Loaders of so many rows on each rank; the validation has them in reverse."""
    return DataLoader(Part(ranks, sized), 4), DataLoader(Part([*reversed(ranks)], sized), 4)


class Nothing:
    """Neither a task nor a module."""


class Steppless(pl.LightningModule):
    """Has no training_step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


class StepPlateau(Plain):
    """A schedule that looks at the loss of each step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02)
        schedule = ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.3)
        watched = {"monitor": "train_loss", "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, **watched}}


class Adding(Plain):
    """Adds up the numbers of the rows that it was given."""

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        numbers = sum(float(name.removeprefix("row ")) for name in batch["name"])
        self.log("rows", numbers, on_step=False, on_epoch=True, reduce_fx="sum")
        return functional.mse_loss(self(batch["x"]), batch["y"])


class Backwards(DistributedSampler[Any]):
    """A user's sampler in reverse order that splits the rows over the ranks."""

    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


def shared() -> tuple[Any, Any]:
    """A loader whose sampler shares the rows out."""
    rows = Rows(ROWS)
    return DataLoader(rows, batch_size=5, sampler=Backwards(rows, seed=3)), Rows(VAL, 1)
