"""What people bring that does something unusual within a step: every hook written, closures, gaps; for the tests of the loop."""

from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from engine.tests.training.lightning.strangers import ROWS, VAL, Plain, Rows

CALLED: list[str] = []
"""Hooks that `Telling` and `Listening` were called with, in order."""

OF_A_STEP = (
    "on_train_batch_start", "on_before_batch_transfer", "on_after_batch_transfer", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_zero_grad", "on_train_batch_end",
)  # fmt: skip


def telling(name: str) -> Any:
    """A hook that writes down that it was called, with how many arguments, within which Lightning thinks it is."""

    def hook(self: Any, *arguments: Any, **named: Any) -> Any:
        module = self if isinstance(self, pl.LightningModule) else arguments[1]
        CALLED.append(
            f"{type(self).__name__}.{name}({len(arguments)}, {sorted(named)}) in {module._current_fx_name}"
        )
        base = super(type(self), self)
        return getattr(base, name)(*arguments, **named)

    return hook


class Telling(Plain):
    """Has written every hook of a step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Listening(pl.Callback):
    """The same for a callback; it logs a metric from a hook too."""


for _name in OF_A_STEP:
    setattr(Telling, _name, telling(_name))
    if hasattr(pl.Callback, _name):
        setattr(Listening, _name, telling(_name))


class Closing(Plain):
    """Its optimizer evaluates the loss several times in a step."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Leaving(Plain):
    """Ends an epoch after its third batch, and answers with a dict."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 3 else None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "rows": len(batch["x"])}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert outputs["rows"] == len(batch["x"]) and not outputs["loss"].requires_grad


class Skipping(Plain):
    """Makes no step of every third batch."""

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if batch_idx % 3 else None


class Gaps(DataLoader[Any]):
    """Gives nothing in place of every fourth batch."""

    def __iter__(self) -> Any:
        for number, batch in enumerate(super().__iter__()):
            yield batch if number % 4 else None


def gaps() -> dict[str, Any]:
    """Loaders, the one of the training with gaps."""
    return {"train": Gaps(Rows(ROWS), batch_size=10), "val": DataLoader(Rows(VAL, 1), batch_size=10)}
