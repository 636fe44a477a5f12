"""Checkpoints of a Keras run: every variable bit for bit, and where the run stands."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.plain_zip import refuse_compressed
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.errors import CheckpointError
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.keras.checkpoint.buffers import Buffers
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.module import Module, Saved

COUNTED = "metrics.npz"
"""File of a checkpoint with what metrics have counted in an epoch; a native task has none."""

RAW = "raw.npz"
"""File of a checkpoint with the weights that training continues from, if they are not those that were validated."""

REST: dict[str, tuple[type, ...]] = {
    "pending": (bool,),
    "best": (int, float, type(None)),
    "bad": (int,),
    "devices": (int,),
    "ended": (bool,),
    "flags": (list,),
    "built": (list,),
    "callbacks": (dict,),
}
"""What state.json holds, by type."""

LATER: dict[str, Any] = {"ended": False, "flags": [], "built": [], "callbacks": {}}
"""What earlier versions did not write."""


class StateWriter:
    """What is saved: copies of model, optimizer and position, which the checkpointer writes while training continues."""

    def __init__(self, checkpointer: AsyncCheckpointer) -> None:
        self.checkpointer = checkpointer
        self.weights, self.optimizer, self.counted, self.raw = Buffers(), Buffers(), Buffers(), Buffers()
        self._validated, self._measured = -1, Buffers()

    def validated(self, module: Module, position: Position) -> None:
        """The weights of this moment were measured: a checkpoint of this step holds them as those of the model."""
        self._measured.fill(module.weights())
        self._validated = position.step

    def save(
        self,
        module: Module,
        position: Position,
        counted: Mapping[str, Any],
        callbacks: Mapping[str, Any],
        value: float | None,
    ) -> None:
        """Make a checkpoint of this moment.

        Args:
            counted: by the module, over all ranks.
            callbacks: their state.
            value: of `checkpoint.monitor`; None if it was not measured at this step.
        """
        self.checkpointer.wait()
        if others := self._validated == position.step:
            self.weights, self._measured = self._measured, self.weights
        else:
            others = module.swap_averages()
            self.weights.fill(module.weights())
            module.swap_averages()
        if others:
            self.raw.fill(module.weights())
        raw = self.raw if others and not self.raw.same(self.weights) else None
        self.optimizer.fill(module.optimizer_state())
        self.counted.fill(counted)
        kept = {
            "pending": position.pending,
            "best": position.patience.best,
            "bad": position.patience.waited,
            "devices": module.strategy.replicas,
            "ended": position.ended,
            **module.trained(),
            "callbacks": callbacks,
        }
        rest = json.dumps(kept)

        def write(folder: Path) -> None:
            self.weights.write(folder / "weights.npz")
            if raw:
                raw.write(folder / RAW)
            self.optimizer.write(folder / "optimizer.npz")
            if counted:
                self.counted.write(folder / COUNTED)
            (folder / "state.json").write_text(rest)

        metrics = dict(position.metrics)
        info = CheckpointInfo(position.step, position.epoch, position.batch, metrics, value, "keras")
        self.checkpointer.save(write, info)


def restore(saved: SavedCheckpoint, module: Module, rest: Mapping[str, Any]) -> Position:
    """Put the variables of a checkpoint into model and optimizers; returns where the run stood.

    Args:
        rest: what `read_rest` read.

    Raises:
        CheckpointError: the checkpoint is of another model, optimizer or precision.
    """
    raw = saved.path / RAW
    _assign(module.weights(), raw if raw.exists() else saved.path / "weights.npz", "model")
    _assign(module.optimizer_state(), saved.path / "optimizer.npz", "optimizer or precision")
    if (saved.path / COUNTED).exists():
        module.restore_counted(_read(saved.path / COUNTED))
    patience = Patience(rest["best"], rest["bad"])
    metrics = dict(saved.metrics)
    return Position(saved.epoch, saved.batch, saved.step, metrics, rest["pending"], patience, rest["ended"])


def read_rest(file: Path) -> dict[str, Any]:
    """What a checkpoint holds besides variables and position: `REST`.

    Raises:
        CheckpointError: the file does not hold exactly these.
    """
    try:
        rest = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} can't be read: {error}.") from error
    if isinstance(rest, dict):
        rest = {**LATER, **rest}
    wrong = [k for k in REST if not isinstance(rest, dict) or k not in rest or type(rest[k]) not in REST[k]]
    if not wrong:
        wrong = [f for f in rest["flags"] if type(f) is not bool] + [
            b for b in rest["built"] if type(b) is not list or {*map(type, b)} - {int}
        ]
    if wrong or rest.keys() != REST.keys() or rest["bad"] < 0 or rest["devices"] < 1:
        raise CheckpointError(f"{file} does not hold {', '.join(REST)}, and nothing else.")
    return dict(rest)


def restore_weights(folder: Path, weights: Saved) -> None:
    """Put the weights of the checkpoint in `folder` into those of the same model. Raises CheckpointError."""
    _assign(weights, folder / "weights.npz", "model")


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """The weights of the checkpoint in `folder`, by name. Raises CheckpointError."""
    return _read(folder / "weights.npz")


def _assign(variables: Saved, file: Path, what: str) -> None:
    stored = _read(file)
    rates = {name for name in stored.keys() ^ variables.keys() if name.endswith("/learning_rate")}
    stored, variables = (
        {name: v for name, v in values.items() if name not in rates} for values in (stored, variables)
    )  # a rate that callbacks may set is a variable, and that of a schedule is not
    if {name: tuple(v.shape) for name, v in variables.items()} != {
        name: a.shape
        for name, a in stored.items()
        if a.dtype.kind in "biufV"  # bfloat16 is V
    }:
        raise CheckpointError(
            f"{file} was written with another {what}; use the configuration that the run was started with."
        )
    for name, variable in variables.items():
        variable.assign(stored[name])


def _read(file: Path) -> dict[str, np.ndarray]:
    """All arrays by name, never an object: unpickling one can run code."""
    refuse_compressed(file)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # a damaged file can make numpy raise nearly anything
        raise CheckpointError(
            f"{file} is damaged, or holds more than numbers ({error}). "
            "Move its folder away to resume from the checkpoint before it."
        ) from error
