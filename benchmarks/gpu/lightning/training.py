"""Train in this process, stopped at a step, or timed."""

from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.gpu.row import Clock, send_stop
from src.config.schema import Config
from src.distributed.topology import Topology
from src.runs.attempts import Outcome
from src.runs.folder import RunDir
from src.training.lightning.run import train
from src.training.stop import Stop

CLOCK = "callbacks.clock._target_=benchmarks.gpu.lightning.training.Ticks"
STOP = "callbacks.stop._target_=benchmarks.gpu.lightning.training.StopAt"

clock = Clock()
"""Of the training that runs."""


class Ticks(pl.Callback):
    """Tells the clock of each step."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        """A step was given to the device."""
        clock.step()


class StopAt(pl.Callback):
    """Sends this process the signal that a scheduler sends ahead of a time limit.

    Args:
        step: after which.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *arguments: Any) -> None:
        """Once."""
        if trainer.global_step == self.step:
            send_stop()


def fit(config: Config, run: RunDir) -> Outcome:
    """Train to the end, or to the signal."""
    clock.__init__()  # type: ignore[misc]
    outcome = train(config, run, Topology(), Stop().install())
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return outcome


def state(run: RunDir) -> dict[str, Any]:
    """What the newest checkpoint holds that training depends on: all but Lightning's counters."""
    newest = (run.checkpoints / "newest").read_text().strip()
    held: dict[str, Any] = torch.load(run.checkpoints / newest / "model.ckpt", weights_only=True)
    del held["loops"]
    return held
