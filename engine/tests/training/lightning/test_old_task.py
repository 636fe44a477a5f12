"""Tasks of version 0.1 train, with one note."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from train_anywhere import tasks

from .conftest import Fit, MakeRun, assert_resumes

WORDS = (
    "data=friedman", "model=mlp", "model.hidden=[16]", "model.dropout=0.2", f"task._target_={__name__}.Table", "data.batch_size=96",
    "trainer.max_epochs=2", "trainer.limit_train_batches=8", "trainer.accelerator=cpu",
)  # fmt: skip


class Table(tasks.Task):
    """As a project of version 0.1 has it."""

    sums = ("squared", "absolute", "count")
    metrics = {"loss": "min", "mae": "min"}  # noqa: RUF012
    headline = "mae"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        squared, absolute, count = sums
        return {"loss": squared / count, "mae": absolute / count}

    def prepare(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"columns": batch["columns"] * 2, "targets": batch["targets"]}

    def step(
        self, network: nn.Module, batch: Mapping[str, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        error = network(batch["columns"]) - batch["targets"]
        losses, real = error.square().mean(1), (weight > 0).float()
        rows = (losses.detach(), error.detach().abs().mean(1))
        return losses, torch.stack([*((row * real).sum() for row in rows), real.sum()])


def test_it_trains_with_one_note(make_run: MakeRun, fit: Fit, capfd: pytest.CaptureFixture[str]) -> None:
    config, run = make_run(*WORDS, "monitor.progress=none")
    assert (config.checkpoint.monitor, config.checkpoint.mode) == ("val/mae", "min")
    metrics = fit(config, run).metrics
    assert {f"{part}/{name}" for part in ("train", "val", "test") for name in ("loss", "mae")} <= {*metrics}
    assert metrics["test/mae"] ** 2 < metrics["test/loss"]
    assert capfd.readouterr().err.count("Table is a task of version 0.1") == 1


def test_it_resumes_bit_for_bit(make_run: MakeRun, fit: Fit) -> None:
    assert_resumes(make_run, fit, (*WORDS, "monitor.progress=none"), train=11, rows=1)
