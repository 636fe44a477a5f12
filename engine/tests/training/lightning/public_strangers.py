"""Modules in the form of public code: a user of trackers, pictures for all loggers, graphs."""

from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Tracked(pl.LightningModule):
    """Logs to W&B, or MLflow, itself."""

    def __init__(self, tracker: str = "wandb") -> None:
        super().__init__()
        self.tracker, self.layer = tracker, nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.layer(batch[0]), batch[0])
        self.log("train_loss", loss)
        if self.tracker == "wandb":
            self.logger.experiment.log({"custom": batch_idx, "trainer/global_step": self.global_step})
        else:
            self.logger.experiment.log_metric(self.logger.run_id, "custom", batch_idx, step=self.global_step)
        self.logger.log_metrics({"by_hand": 2.0 * batch_idx}, step=self.global_step)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def configure_callbacks(self) -> Any:
        return [LearningRateMonitor(logging_interval="step")]

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)


class Draws(Tracked):
    """Draws pictures for all loggers, as Lightning's GAN example."""

    def training_step(self, batch: Any) -> Tensor:
        loss = F.mse_loss(self.layer(batch[0]), batch[0])
        self.log_dict({"g_loss": loss, "d_loss": loss}, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        for logger in self.loggers:
            logger.experiment.add_image("generated_images", torch.zeros(1, 4, 4), self.current_epoch)


@dataclass
class Batch:
    """Several graphs as one, like torch_geometric's: not a tensor, but with `to` and attributes."""

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    y: Tensor

    @property
    def num_graphs(self) -> int:
        return len(self.y)

    def to(self, *arguments: Any, **named: Any) -> "Batch":
        moved = {name: value.to(*arguments, **named) for name, value in vars(self).items()}
        return Batch(**moved)


def collate(graphs: list[tuple[Tensor, Tensor, float]]) -> Batch:
    """Join graphs, with shifted indices of nodes."""
    sizes = [len(x) for x, _, _ in graphs]
    first = [sum(sizes[:n]) for n in range(len(sizes))]
    return Batch(
        torch.cat([x for x, _, _ in graphs]),
        torch.cat([edges + start for (_, edges, _), start in zip(graphs, first, strict=True)], dim=1),
        torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        torch.tensor([[y] for _, _, y in graphs]),
    )


class Graphs(pl.LightningModule):
    """A sum over the neighbours, and one number for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, data: Batch) -> Tensor:
        source, target = data.edge_index
        nodes = self.layer(data.x + torch.zeros_like(data.x).index_add(0, target, data.x[source]))
        return torch.zeros(data.num_graphs, 1).index_add(0, data.batch, nodes)

    def training_step(self, data: Batch, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self(data), data.y)
        self.log("train_loss", loss, batch_size=data.num_graphs)
        return loss

    def validation_step(self, data: Batch, batch_idx: int) -> None:
        self.log("val_loss", F.mse_loss(self(data), data.y), batch_size=data.num_graphs)

    def test_step(self, data: Batch, batch_idx: int) -> None:
        self.log("test_loss", F.mse_loss(self(data), data.y), batch_size=data.num_graphs)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Finding(Graphs):
    """Has a learning rate that LearningRateFinder sets."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 1e-3

    def training_step(self, data: Batch, batch_idx: int) -> Tensor:
        self.log("train_lr", self.lr, on_step=True, batch_size=1)
        return super().training_step(data, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class GraphData(pl.LightningDataModule):
    """Rings of different sizes."""

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(1)
        sizes = [3 + n % 4 for n in range(20)]
        self.graphs = [
            (
                torch.randn(n, 2, generator=generator),
                torch.stack([torch.arange(n), torch.arange(n).roll(1)]),
                float(n),
            )
            for n in sizes
        ]

    def train_dataloader(self) -> Any:
        return DataLoader(self.graphs, batch_size=4, shuffle=True, collate_fn=collate)

    def val_dataloader(self) -> Any:
        return DataLoader(self.graphs, batch_size=6, collate_fn=collate)

    test_dataloader = val_dataloader


class Ending(Tracked):
    """Ends training in its own way."""

    def __init__(self, how: str = "hook") -> None:
        super().__init__()
        self.how = how

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.how == "iterator" and batch_idx == 3:
            next(iter([]))
        loss = F.mse_loss(self.layer(batch[0]), batch[0])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_callbacks(self) -> Any:
        return [EarlyStopping("train_loss", stopping_threshold=100.0)] if self.how == "callback" else []

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.how == "hook" and self.trainer.global_step == 3:
            self.trainer.should_stop = True

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.how == "skip" and batch_idx == 3 else None
