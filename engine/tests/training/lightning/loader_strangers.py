"""A module and loaders that draw their order from a generator of their own."""

import signal
from collections.abc import Iterator
from typing import Any, ClassVar

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from engine.tests.differential.lightning.parts import Stateful

ROWS = 12


class Rows(Dataset[Any]):
    """Row n is n. The signal comes when a number of rows has been read."""

    reads = stop_at = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        Rows.reads += 1
        if Rows.reads == Rows.stop_at:
            signal.raise_signal(signal.SIGTERM)
        return torch.tensor([float(index)])


class Walk(Sampler[int]):
    """A sampler that continues its own sequence of numbers in each epoch."""

    def __init__(self) -> None:
        self.numbers = torch.Generator().manual_seed(7)

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(ROWS, (ROWS,), generator=self.numbers).tolist())


def drawing(kind: str = "loader") -> Any:
    """Return a loader that depends on a generator of its own."""
    rows = Rows()
    if kind == "stateful":
        return Stateful(rows, batch_size=3)
    if kind == "sampler":
        return DataLoader(rows, batch_size=3, sampler=Walk())
    if kind == "cycled":  # the second loader is opened twice in an epoch
        other = DataLoader(rows, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(8))
        return [DataLoader(rows, batch_size=3, shuffle=True), other]
    return DataLoader(rows, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(7))


class Keeps(pl.LightningModule):
    """Keeps the rows of each step, and the handler of SIGTERM within training."""

    seen: ClassVar[list[Any]] = []
    handlers: ClassVar[list[Any]] = []
    loaders: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        parts = batch if isinstance(batch, list) else [batch]
        Keeps.seen.append([part.flatten().tolist() for part in parts])
        Keeps.handlers.append(signal.getsignal(signal.SIGTERM))
        Keeps.loaders.append(self.trainer.train_dataloader)
        return self.network(torch.cat(parts)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)
