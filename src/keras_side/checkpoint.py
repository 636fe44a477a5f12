"""Checkpoints of a Keras run: every variable bit for bit, and where the run stands."""

import json
from pathlib import Path

import keras
import numpy as np

from src.checkpoint_store import Saved
from src.errors import CheckpointError
from src.keras_side.buffers import Buffers
from src.keras_side.classifier import Classifier
from src.keras_side.state import State
from src.publish import Publisher


class Saver:
    """Hands copies of model, optimizer and state to the publisher, which writes them while training goes on."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.weights, self.optimizer = Buffers(), Buffers()

    def save(self, model: Classifier, state: State, value: float | None) -> None:
        """Make a checkpoint of this moment.

        Args:
            value: of `checkpoint.monitor`, None where it was not measured at this step.
        """
        self.publisher.wait_buffers()
        self.weights.fill(model.variables)  # weights, moving statistics, states of seed generators
        self.optimizer.fill(model.optimizer.variables)
        kept = {"pending": state.pending, "best": state.best, "bad": state.bad}
        rest = json.dumps(kept | {"devices": model.strategy.replicas})

        def write(folder: Path) -> None:
            self.weights.write(folder / "weights.npz")
            self.optimizer.write(folder / "optimizer.npz")
            (folder / "state.json").write_text(rest)

        position = {"step": state.step, "epoch": state.epoch, "batch": state.batch}
        facts = {"metrics": dict(state.metrics), "value": value, "framework": "keras"}
        self.publisher.save(write, **position, **facts)


def restore(saved: Saved, model: Classifier) -> tuple[State, int]:
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
    rest = json.loads((saved.path / "state.json").read_text())
    devices = rest.pop("devices")
    return State(saved.epoch, saved.batch, saved.step, dict(saved.metrics), **rest), devices


def restore_weights(folder: Path, model: keras.Model) -> None:
    """Put the weights of the checkpoint in `folder` into the same model. Raises CheckpointError."""
    _assign(model.variables, folder / "weights.npz", "model")


def _assign(variables: list[keras.Variable], file: Path, what: str) -> None:
    with np.load(file) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    if {v.path: tuple(v.shape) for v in variables} != {name: a.shape for name, a in stored.items()}:
        raise CheckpointError(
            f"{file} was written with another {what}; use the configuration that the run began with."
        )
    for variable in variables:
        variable.assign(stored[variable.path])
