"""Modules, callbacks and loaders with state that no state_dict holds."""

import random
import signal
from collections.abc import Iterator
from typing import Any, ClassVar

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanSquaredError, MinMaxMetric, RunningMean

ROWS, BATCH = 24, 4


class Net(pl.LightningModule):
    """A small network that notes the loss of each step, and is stopped after one of them."""

    stop_at = 0
    losses: ClassVar[list[float]] = []

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.loss(batch)
        self.note(loss)
        return loss

    def loss(self, batch: Tensor) -> Tensor:
        return F.mse_loss(self.net(batch), batch.sum(1, keepdim=True))

    def note(self, loss: Tensor) -> None:
        Net.losses.append(loss.item())
        if len(Net.losses) == Net.stop_at:
            signal.raise_signal(signal.SIGTERM)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)


class Schedule(Net):
    """A schedule that is an attribute."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 0.05)
        self.rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18)
        return optimizer

    def optimizer_step(self, *arguments: Any, **named: Any) -> None:
        super().optimizer_step(*arguments, **named)
        self.rates.step()


class Inner(torch.optim.Optimizer):
    """An optimizer around another one."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.calls = 0

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure else None
        self.calls += 1
        for group in self.param_groups:
            group["lr"] = 0.05 / self.calls
        self.base.step()
        return loss


class Around(Net):
    """An optimizer around another one."""

    def configure_optimizers(self) -> Any:
        return Inner(self.parameters())


class Waits(Net):
    """Gradients that wait for the step of three batches."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Tensor, index: int) -> None:
        optimizer: Any = self.optimizers()
        loss = self.loss(batch)
        self.manual_backward(loss)
        if len(Net.losses) % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        self.note(loss)


class Metrics(Net):
    """Metrics with state beside their states."""

    def __init__(self) -> None:
        super().__init__()
        self.extremes, self.mean = MinMaxMetric(MeanSquaredError()), RunningMean(window=3)

    def loss(self, batch: Tensor) -> Tensor:
        loss = super().loss(batch)
        self.extremes.update(self.net(batch), batch.sum(1, keepdim=True))
        self.mean.update(loss.detach())
        return loss * (1 + self.extremes.compute()["min"] + self.mean.compute())


class Counter(pl.Callback):
    """A callback that scales gradients by its own counter."""

    def __init__(self) -> None:
        self.steps, self.names = 0, set[str]()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.steps += 1
        self.names.add(f"step{self.steps}")
        for parameter in module.parameters():
            parameter.grad *= 1 / len(self.names)


class Counted(Net):
    """A module that brings a callback with a counter."""

    def configure_callbacks(self) -> Any:
        return Counter()


class Rows(Dataset[Any]):
    """Rows, harder in each pass that the sampler reports."""

    def __init__(self) -> None:
        self.rows = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
        self.level, self.reads = 0, 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Tensor:
        self.reads += 1
        return self.rows[index] * (1 + self.level) + self.reads / 100


class Shuffles:
    """A batch sampler that shuffles its own list in place, and counts its passes."""

    batch_size, drop_last = BATCH, True

    def __init__(self, rows: Rows) -> None:
        self.rows, self.order, self.passes = rows, [*range(ROWS)], 0
        self.draws = np.random.default_rng(5)

    def __len__(self) -> int:
        return ROWS // BATCH

    def __iter__(self) -> Iterator[list[int]]:
        self.passes += 1
        self.rows.level = self.passes
        random.shuffle(self.order)
        self.draws.shuffle(self.order)
        yield from (self.order[n : n + BATCH] for n in range(0, ROWS, BATCH))


def loader(kind: str) -> Any:
    """Return a loader of rows."""
    rows = Rows()
    if kind == "Order":
        return DataLoader(rows, batch_sampler=Shuffles(rows))
    if kind == "Workers":
        plain: Any = [*rows.rows]
        return DataLoader(plain, batch_sampler=Shuffles(rows), num_workers=1, persistent_workers=True)
    return DataLoader(rows, BATCH, shuffle=True)


class Order(Net):
    """A plain module whose loader has state."""


class Workers(Net):
    """A plain module whose workers stay from epoch to epoch."""


class Probe(pl.Callback):
    """Adds a layer to the module before training, and trains it."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        module.probe = nn.Linear(3, 1)
        self.optimizer = torch.optim.Adam(module.probe.parameters(), 0.1)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        F.mse_loss(module.probe(batch), module.net(batch).detach()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Probed(Net):
    """A module to which a callback adds a layer."""

    def configure_callbacks(self) -> Any:
        return Probe()


class Lazy(Net):
    """A module that adds a layer in its first step."""

    def loss(self, batch: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 1)
        return super().loss(batch) + self.late(batch).pow(2).mean().detach()


class Ends(Net):
    """A module that ends the training once, before `min_epochs`."""

    def loss(self, batch: Tensor) -> Tensor:
        if len(Net.losses) == 7:
            self.trainer.should_stop = True
        return super().loss(batch)


class Validates(Net):
    """A module that logs each batch of a validation."""

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.log("val_loss", self.loss(batch), on_step=True)


def both(kind: str) -> Any:
    """Return loaders of two splits."""
    return {"train": loader(kind), "val": DataLoader(Rows(), 8)}
