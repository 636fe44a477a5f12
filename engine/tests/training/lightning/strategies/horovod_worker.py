"""One rank of Horovod with Lightning: trains a small network per case and saves the result.

<launcher> python horovod_worker.py FOLDER CASE...     writes FOLDER/<case>.<world size>.<rank>.npz
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

sys.path.insert(1, str(Path(__file__).resolve().parents[5] / "engine"))

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from train_anywhere.distributed.discover import discover
from train_anywhere.distributed.topology import Topology
from train_anywhere.training.lightning.strategies import horovod
from train_anywhere.training.lightning.strategies.horovod import HorovodStrategy, hvd

GLOBAL_BATCH, STEPS = 12, 6  # for 1, 2 and 3 ranks


class Network(pl.LightningModule):
    """A network of 8 numbers to 3 classes whose `kind` chooses the layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(20, 8, sparse=kind == "sparse")
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        if kind == "batchnorm":
            self.layers.insert(1, nn.BatchNorm1d(16))
        if kind == "half_unused":
            self.sometimes = nn.Linear(8, 3)
        self.loss = MeanMetric()
        self.log_lines: dict[str, Any] = {"collectives": []}

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "sparse":
            x = self.embed((x[:, 0].abs() * 7).long() % 20)
        if self.kind == "half_unused" and self.global_rank == 1:
            return self.layers(x) + self.sometimes(x)
        return self.layers(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        if self.kind == "die" and index == 2 and self.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "stall" and index == 2 and self.global_rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(600)
        loss = nn.functional.cross_entropy(self(x), y)
        if self.kind == "overflow" and index == 2 and self.global_rank == self.trainer.world_size - 1:
            loss = loss * float("inf")
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.loss.update(loss)
        self.log("logged", loss, sync_dist=True, on_epoch=True)
        if index == 0:
            self.log_lines["rows"] = self.trainer.strategy.all_gather(batch[0][:, 0]).flatten()

    def on_validation_epoch_end(self) -> None:
        self.log_lines["torchmetrics"] = self.loss.compute()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = self.embed if self.kind == "sparse" else self.layers
        return torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.0 if self.kind == "sparse" else 0.9)


def batches(rank: int, world_size: int, count: int) -> DataLoader:
    """This rank's rows of the same global batches, whatever the number of ranks."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(count, GLOBAL_BATCH, 8, generator=generator)
    labels = torch.randint(0, 3, (count, GLOBAL_BATCH), generator=generator)
    rows = slice(rank * GLOBAL_BATCH // world_size, (rank + 1) * GLOBAL_BATCH // world_size)
    return DataLoader(TensorDataset(images[:, rows], labels[:, rows]), batch_size=None)


SCALED = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=16.0))
CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "not_averaged": {}, "clip": {"gradient_clip_val": 0.05},
    "accumulate": {"accumulate_grad_batches": 2}, "batchnorm": {}, "sparse": {}, "half_unused": {},
    "compressed": {}, "bf16": {"precision": "bf16-mixed"}, "fp16": {"plugins": [SCALED]},
    "overflow": {"plugins": [SCALED]}, "two_epochs": {"max_epochs": 2}, "resume": {"max_epochs": 2},
    "die": {}, "stall": {},
}  # fmt: skip


def run(case: str, folder: Path) -> None:
    """Train and save."""
    topology = discover()
    torch.manual_seed(100 + topology.rank)  # so that only a broadcast makes the ranks equal
    if case == "not_averaged":
        HorovodStrategy._on_gradient = lambda self, parameter: None
        HorovodStrategy.post_backward = lambda self, loss: None
    network, checkpoint = Network(case), folder / f"{case}.{topology.world_size}.ckpt"
    count_collectives(network)
    train, val = (batches(topology.rank, topology.world_size, count) for count in (STEPS, 2))
    if case == "resume":
        first = make_trainer(case, topology, max_epochs=1)
        first.fit(network, train, val)
        first.save_checkpoint(checkpoint)
        network = Network(case)
    trainer = make_trainer(case, topology, **CASES[case])
    trainer.fit(network, train, val, ckpt_path=checkpoint if case == "resume" else None, weights_only=True)
    trainer.save_checkpoint(checkpoint)
    np.savez(
        folder / f"{case}.{topology.world_size}.{topology.rank}.npz",
        **{f"weights/{k}": v.numpy() for k, v in network.state_dict().items()},
        **{k: np.asarray(v) for k, v in network.log_lines.items()},
        logged=trainer.callback_metrics["logged"],
    )


def make_trainer(case: str, topology: Topology, **options: Any) -> pl.Trainer:
    """A Trainer that only trains."""
    strategy = HorovodStrategy(topology, torch.device("cpu"), "fp16" if case == "compressed" else "none")
    return pl.Trainer(
        accelerator="cpu", strategy=strategy, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
        **{"max_epochs": 1, **options},
    )  # fmt: skip


def count_collectives(network: Network) -> None:
    """Note the name of every all-reduce that is started."""
    send = hvd.allreduce_async_

    def counted(tensor: Tensor, name: str, op: object) -> Any:
        network.log_lines["collectives"].append(name)
        return send(tensor, name=name, op=op)

    horovod.hvd.allreduce_async_ = counted


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[2:]:
        run(case, Path(sys.argv[1]))
