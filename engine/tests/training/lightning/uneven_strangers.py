"""Modules that log and gather values of rows whose number the ranks don't divide."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanSquaredError

ROWS = 17


def numbers() -> dict[str, Any]:
    """Rows that hold their own number."""
    train, rows = (TensorDataset(torch.arange(float(n)).unsqueeze(1)) for n in (24, ROWS))
    return {"train": train, "val": rows, "test": rows}


class Logging(pl.LightningModule):
    """Logs the mean square of the row numbers in every way, and gathers the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.metric = nn.Parameter(torch.zeros(1)), MeanSquaredError()
        self.rows: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        squares = batch[0].square()
        self.log("train_sync", squares.mean(), sync_dist=True, on_step=True, on_epoch=True)
        self.log("train_own", squares.mean(), on_step=True, on_epoch=True)
        return (self.weight * squares).mean() * 0

    def measure(self, batch: Any, kind: str) -> None:
        x = batch[0]
        squares, size = x.square(), len(x)
        self.log(f"{kind}_sync", squares.mean(), sync_dist=True)
        self.log(f"{kind}_own", squares.mean())
        self.log(f"{kind}_given", squares.mean(), sync_dist=True, batch_size=size)
        self.log(f"{kind}_forked", squares.mean(), sync_dist=True, on_step=True, on_epoch=True)
        self.log(f"{kind}_own_forked", squares.mean(), on_step=True, on_epoch=True)
        self.log(f"{kind}_on_step", squares.mean(), on_step=True, on_epoch=False)
        self.log_dict({f"{kind}_dict": squares.mean()}, sync_dist=True)
        if self.trainer.world_size > 1:
            group = torch.distributed.group.WORLD
            self.log(f"{kind}_group", squares.mean(), sync_dist=True, sync_dist_group=group)
        for sync in (False, True):
            self.log(f"{kind}_sum_{sync}", squares.sum(), sync_dist=sync, reduce_fx="sum")
            self.log(f"{kind}_max_{sync}", squares.max(), sync_dist=sync, reduce_fx=max)
            self.log(f"{kind}_min_{sync}", squares.min(), sync_dist=sync, reduce_fx=torch.min)
        self.metric(x.flatten(), torch.zeros(size))
        self.log(f"{kind}_torchmetrics", self.metric)
        if self.trainer.is_global_zero:
            self.log(f"{kind}_zero", squares.mean(), rank_zero_only=True, sync_dist=True)
        self.rows.append(x)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.measure(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.measure(batch, "test")

    def on_validation_epoch_end(self) -> None:
        rows, self.rows = torch.cat(self.rows), []
        gathered = self.all_gather({"rows": rows, "more": [rows[:1], 2.0]})
        values = gathered["rows"].reshape(-1)
        assert sorted(values.tolist()) == [float(n) for n in range(ROWS)]
        assert gathered["more"][0].numel() == gathered["more"][1].numel() == self.trainer.world_size
        self.log("val_gathered", values.square().mean(), sync_dist=True)
        assert float(self.trainer.callback_metrics["val_sync"]) == 88

    def on_train_start(self) -> None:
        size = 3 + self.global_rank
        own = torch.ones(size, requires_grad=True)
        joined = self.all_gather(own, sync_grads=True).flatten()
        (joined * torch.arange(len(joined))).sum().backward()
        ranks, first = self.trainer.world_size, 3 * self.global_rank
        assert own.grad is not None
        assert own.grad.tolist() == [ranks * float(n) for n in range(first, first + size)]

    def on_train_end(self) -> None:
        trainer, ranks = self.trainer, self.trainer.world_size
        assert (trainer.num_devices, trainer.device_ids, trainer.num_nodes) == (ranks, [*range(ranks)], 1)
        best = trainer.checkpoint_callback.best_model_path
        assert len({*trainer.strategy.broadcast([best]), best}) == 1 and best.endswith("00000002/model.ckpt")
        assert float(trainer.checkpoint_callback.best_model_score) == 88
        self.logger.experiment.log_metric(self.logger.run_id, "by_hand", 1.0)  # a dummy on other ranks

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Misfit(Logging):
    """Gathers tensors of different widths."""

    def on_validation_epoch_end(self) -> None:
        self.all_gather(torch.zeros(2, 3 + self.global_rank))
