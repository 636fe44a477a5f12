"""A run that was stopped and resumed ends with the same bits as one that was not, in every precision."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import train_anywhere  # noqa: F401  # isort: skip  # chooses Keras' backend
import keras
import numpy as np

from benchmarks.gpu.row import Place, Row, resumed, send_stop, tried
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.keras.run import train

STEPS = ("framework=keras", "trainer.max_epochs=3", "trainer.gradient_clip_val=0.5", "schedule=cosine")
STOP = "callbacks.stop._target_=benchmarks.gpu.keras.resume.StopAt"
MLP = ("model=mlp", "model.hidden=[256]", "model.dropout=0.5")

KINDS = {
    "float32": MLP,
    "float32 without TF32": (*MLP, "trainer.tf32=false"),
    "16-mixed": (*MLP, "trainer.precision=16-mixed"),
    "bf16-mixed": (*MLP, "trainer.precision=bf16-mixed"),
    "compiled": (*MLP, "trainer.compile=true"),
    "accumulated, compiled": (*MLP, "trainer.compile=true", "trainer.accumulate_grad_batches=2"),
}


class StopAt(keras.callbacks.Callback):
    """Sends this process the signal that a scheduler sends ahead of a time limit.

    Args:
        step: after which.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Once."""
        self.left -= 1
        if self.left == 0:
            send_stop()


def rows(place: Place) -> Iterator[Row]:
    """One for each kind."""
    for name, words in KINDS.items():
        yield tried(f"Keras, stopped and resumed: {name}", partial(_differs, place, words))


def _differs(place: Place, words: tuple[str, ...]) -> str | None:
    return resumed(place, (*STEPS, *words), (STOP, "callbacks.stop.step=6"), fit, state)


def fit(config: Config, run: RunDir) -> Outcome:
    """Train to the end, or to the signal."""
    return train(config, RankProcess(run, Topology(), Stop().install()))


def state(run: RunDir) -> dict[str, Any]:
    """Weights and optimizer of the newest checkpoint."""
    folder = run.checkpoints / (run.checkpoints / "newest").read_text().strip()
    return {name: dict(np.load(folder / name)) for name in ("weights.npz", "optimizer.npz")}
