"""Checkpoints of a Keras run: every variable bit for bit, and where the run stands."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from src.checkpoints.checkpointer import AsyncCheckpointer
from src.checkpoints.info import CheckpointInfo, SavedCheckpoint
from src.checkpoints.plain_zip import refuse_compressed
from src.errors import CheckpointError
from src.training.keras.buffers import Buffers
from src.training.keras.module import Classifier
from src.training.keras.position import State

REST: dict[str, tuple[type, ...]] = {
    "pending": (bool,),
    "best": (int, float, type(None)),
    "bad": (int,),
    "devices": (int,),
}
"""What state.json holds, by type."""


class Saver:
    """Hands copies of model, optimizer and state to the publisher, which writes them while training goes on."""

    def __init__(self, publisher: AsyncCheckpointer) -> None:
        self.publisher = publisher
        self.weights, self.optimizer = Buffers(), Buffers()

    def save(self, model: Classifier, state: State, value: float | None) -> None:
        """Make a checkpoint of this moment.

        Args:
            value: of `checkpoint.monitor`, None where it was not measured at this step.
        """
        self.publisher.wait()
        self.weights.fill(model.variables)  # weights, moving statistics, states of seed generators
        self.optimizer.fill(model.optimizer.variables)
        kept = {"pending": state.pending, "best": state.best, "bad": state.bad}
        rest = json.dumps(kept | {"devices": model.strategy.replicas})

        def write(folder: Path) -> None:
            self.weights.write(folder / "weights.npz")
            self.optimizer.write(folder / "optimizer.npz")
            (folder / "state.json").write_text(rest)

        position: dict[str, Any] = {"step": state.step, "epoch": state.epoch, "batch": state.batch}
        facts: dict[str, Any] = {"metrics": dict(state.metrics), "value": value, "framework": "keras"}
        self.publisher.save(write, CheckpointInfo(**position, **facts))


def restore(saved: SavedCheckpoint, model: Classifier) -> tuple[State, int]:
    """Put the variables of a checkpoint into model and optimizer.

    Returns:
        Where the run stood, and how many devices shared the batch.

    Raises:
        CheckpointError: where the checkpoint is of another framework, model, optimizer or precision.
    """
    if saved.framework != "keras":
        raise CheckpointError(
            f"{saved.path} was written with framework={saved.framework}; go on with that, or start a new run."
        )
    restore_weights(saved.path, model)
    _assign(model.optimizer.variables, saved.path / "optimizer.npz", "optimizer or precision")
    rest = read_rest(saved.path / "state.json")
    devices = rest.pop("devices")
    return State(saved.epoch, saved.batch, saved.step, dict(saved.metrics), **rest), devices


def read_rest(file: Path) -> dict[str, Any]:
    """What a checkpoint holds besides variables and position: pending, best, bad and devices.

    Raises:
        CheckpointError: where it does not.
    """
    try:
        rest = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} can't be read: {error}.") from error
    wrong = [k for k in REST if not isinstance(rest, dict) or k not in rest or type(rest[k]) not in REST[k]]
    if wrong or rest.keys() != REST.keys() or rest["bad"] < 0 or rest["devices"] < 1:
        raise CheckpointError(f"{file} does not hold the numbers {', '.join(REST)} and nothing else.")
    return dict(rest)


def restore_weights(folder: Path, model: keras.Model) -> None:
    """Put the weights of the checkpoint in `folder` into the same model. Raises CheckpointError."""
    _assign(model.variables, folder / "weights.npz", "model")


def _assign(variables: list[keras.Variable], file: Path, what: str) -> None:
    stored = _read(file)
    if {v.path: tuple(v.shape) for v in variables} != {
        name: a.shape
        for name, a in stored.items()
        if a.dtype.kind in "biufV"  # bfloat16 is V
    }:
        raise CheckpointError(
            f"{file} was written with another {what}; use the configuration that the run began with."
        )
    for variable in variables:
        variable.assign(stored[variable.path])


def _read(file: Path) -> dict[str, np.ndarray]:
    """All arrays by name, never an object: unpickling one can run code."""
    refuse_compressed(file)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # numpy raises nearly anything at a damaged file
        raise CheckpointError(
            f"{file} is damaged, or holds more than numbers ({error}). "
            "Move its folder away to go on from the checkpoint before it."
        ) from error
