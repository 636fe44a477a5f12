"""Strangers' modules by what they can do after training."""

from typing import Any

from torch import Tensor

from engine.tests.training.lightning.strangers import Plain


class Answering(Plain):
    """Says what it answers to a batch."""

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        return self(batch["x"])


class NeverCalled(Plain):
    """Its steps call a part of it."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        return (self.layers(batch["x"]) - batch["y"]).square().mean()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("val_loss", (self.layers(batch["x"]) - batch["y"]).square().mean())

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("test_loss", (self.layers(batch["x"]) - batch["y"]).square().mean())
