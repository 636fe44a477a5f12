"""Checkpoints of a Keras run: every variable bit for bit, the progress of the run, seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.choice import read_chosen, select_weights
from train_anywhere.checkpoints.disk.manifest import CheckpointInfo, SavedCheckpoint
from train_anywhere.config.schema import Config, Init, Trainer
from train_anywhere.errors import CheckpointError
from train_anywhere.files.copy_files import refuse_compressed
from train_anywhere.runs.folder import open_run
from train_anywhere.training.adapters import refuse_other_base
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.keras.dropin.gradients import ADAPTERS, NamedVariables, read_flags
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import Plan, refuse_other_framework, validation_due


@dataclass
class Position:
    """The progress of a run, updated while it trains.

    Attributes:
        epoch: epoch of the next batch, from 0.
        batch: number of the next batch in its epoch, from 0.
        pending: the end of the epoch, or a validation within it, is still to be run.
        ended: a callback has set `stop_training`: the run is complete.
        seconds: time of training of the run, when it was saved.
        timed_out: `trainer.max_time` is over: the run is complete.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    pending: bool = False
    patience: Patience = field(default_factory=Patience)
    ended: bool = False
    preempted: bool = False
    seconds: float = 0.0
    timed_out: bool = False

    def advance(self, plan: Plan, trainer: Trainer, steps: int = 1) -> None:
        """Count optimizer steps of an epoch as done."""
        for _ in range(steps):
            self.step += 1
            self.batch += plan.accumulate
            self.pending |= validation_due(trainer, plan, self.epoch, self.batch, self.step)
        self.pending |= self.ends_epoch(plan)

    def ends_epoch(self, plan: Plan) -> bool:
        """Return whether no step is left in the epoch or the run."""
        return self.batch >= plan.train_batches or self.step >= plan.total_steps or self.timed_out


def disable_graph_optimizer() -> None:
    """Turn off TensorFlow's graph optimizer (Grappler) on CPUs, for steps that return logs.

    Measured with TensorFlow 2.21 and a ResNet-50 in batches of 8, with two threads for operations: with the optimizer, runs ended with
    different weights, also under enable_op_determinism(); without it, all were equal and a step took as long. On GPUs it stays on.
    """
    if not tf.config.get_visible_devices("GPU"):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def copy_values(variables: NamedVariables) -> dict[str, np.ndarray]:
    """Return copies of the current values."""
    return {name: np.asarray(v.value.read_value().numpy()) for name, v in variables.items()}


METRICS_FILE = "metrics.npz"
"""File of a checkpoint with the metric states of an unfinished epoch."""

RAW_WEIGHTS = "raw.npz"
"""File of a checkpoint with the weights that training continues from, if they differ from the validated ones."""

STATE_TYPES: dict[str, tuple[type, ...]] = {
    "pending": (bool,),
    "best": (int, float, type(None)),
    "bad": (int,),
    "devices": (int,),
    "ended": (bool,),
    "flags": (list,),
    "traced": (list,),
    "callbacks": (dict,),
    "lora": (list, type(None)),
}
"""Keys of state.json and the types of their values."""


def save_state(
    checkpointer: AsyncCheckpointer,
    module: Module,
    position: Position,
    metric_state: Sequence[np.ndarray],
    callbacks: Mapping[str, Any],
    value: float | None,
    validated: dict[str, np.ndarray] | None,
) -> None:
    """Copy the state, which is written while training continues.

    `value` is the monitored one, if it was measured at this step, and `validated` are the weights that were measured, if others may be
    trained.
    """
    checkpointer.wait()
    now = copy_values(module.weights())
    files = {"weights.npz": validated or now, "optimizer.npz": copy_values(module.optimizer_state())}
    if validated and any(array.tobytes() != validated[name].tobytes() for name, array in now.items()):
        files[RAW_WEIGHTS] = now
    if metric_state:
        files[METRICS_FILE] = {f"state/{n}": array for n, array in enumerate(metric_state)}
    state = {
        "pending": position.pending,
        "best": position.patience.best,
        "bad": position.patience.waited,
        "devices": module.strategy.replicas,
        "ended": position.ended,
        "flags": read_flags(module.model),
        "traced": module.flags or module.saved_flags or [],
        "callbacks": callbacks,
        "lora": module.base.identity if module.base else None,
    }
    text = json.dumps(state)

    def write(folder: Path) -> None:
        for file, arrays in files.items():
            with open(folder / file, "wb") as opened:
                np.savez(opened, **arrays)  # type: ignore[arg-type]
        (folder / "state.json").write_text(text)

    at, metrics = (position.step, position.epoch, position.batch), dict(position.metrics)
    checkpointer.save(write, CheckpointInfo(*at, metrics, value, "keras", seconds=position.seconds))


def restore_or_initialize(
    config: Config, module: Module, newest: SavedCheckpoint | None
) -> tuple[Position, dict[str, Any] | None]:
    """Restore the newest checkpoint and its state.json, or initial weights, on all ranks.

    Raises CheckpointError: the checkpoint is of another framework, model, optimizer or precision.
    """
    strategy, position, state, sums = module.strategy, Position(), None, list[Any]()
    if newest:
        refuse_other_framework(newest, "keras")
    if strategy.rank == 0 and (newest is None or module.base):  # a checkpoint does not hold the base
        shows = config.monitor.progress != "none" and newest is None
        load_initial_weights(config.init, module, partial(print, flush=True) if shows else lambda line: None)
    if newest:
        folder, raw = newest.path, newest.path / RAW_WEIGHTS
        state = read_state(folder / "state.json")
        check_base(str(folder), module, state["lora"])
        restore_variables(raw if raw.exists() else folder / "weights.npz", module.weights())
        restore_variables(folder / "optimizer.npz", module.optimizer_state(), "optimizer or precision")
        if (folder / METRICS_FILE).exists():
            sums = [array.tolist() for array in _read(folder / METRICS_FILE).values()]
        at, metrics = (newest.epoch, newest.batch, newest.step), dict(newest.metrics)
        patience = Patience(state["best"], state["bad"])
        position = Position(*at, metrics, state["pending"], patience, state["ended"], seconds=newest.seconds)
    weights = {**(module.base.variables if module.base else {}), **module.weights()}
    strategy.broadcast_variables([*weights.values(), *module.optimizer_state().values()])
    state, known, sums = strategy.broadcast_json([state, asdict(position), sums])
    module.restore_metrics(sums)
    # each device has other dropout seeds, after all received those of rank 0
    for seed in (v for v in module.model.variables if v.name == SEED_STATE):
        local = strategy.local_values(seed)
        for number, value in enumerate(local):
            value.assign_add(tf.constant([strategy.rank * len(local) + number, 0], value.dtype))
    return Position(**known | {"patience": Patience(**known["patience"])}), state


def read_state(file: Path) -> dict[str, Any]:
    """Return the content of state.json. Raises CheckpointError unless it has `STATE_TYPES`."""
    try:
        state = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} can't be read: {error}.") from error
    state = {"lora": None, "traced": [], **state} if isinstance(state, dict) else {}
    state.pop("built", None)  # of earlier versions
    wrong = [key for key, types in STATE_TYPES.items() if key not in state or type(state[key]) not in types]
    if not wrong:
        wrong = [flag for flag in (*state["flags"], *state["traced"]) if type(flag) is not bool]
    if wrong or state.keys() != STATE_TYPES.keys() or state["bad"] < 0 or state["devices"] < 1:
        raise CheckpointError(f"{file} does not hold {', '.join(STATE_TYPES)}, and nothing else.")
    return state


def check_base(where: str, module: Module, lora: Sequence[str] | None) -> None:
    """Raise CheckpointError unless the adapters in `where` fit the base of the module."""
    if module.base and lora:
        refuse_other_base(where, lora, module.base.identity)


SEED_STATE = "seed_generator_state"
"""Suffix of the names of random states, which are not loaded: a new run uses its own seed."""


def load_initial_weights(init: Init, module: Module, report: Callable[[str], None]) -> None:
    """Load the weights that `init` names, if any, into the model. Raises CheckpointError: the weights can't be read, or do not fit."""
    if init.run is None:
        return

    def read(saved: SavedCheckpoint) -> tuple[dict[str, Any], list[str] | None]:
        refuse_other_framework(saved, "keras")
        return _read(saved.path / "weights.npz"), read_state(saved.path / "state.json")["lora"]

    stored, lora = read_chosen(open_run(init.run), init.checkpoint, read)
    if lora:
        refuse_other_base(f"init.run={init.run}", lora, module.base.identity if module.base else None)
    weights = module.weights()
    if module.base and not lora:  # the weights of the base, not those of its adapters
        weights = {n: v for n, v in (weights | module.base.variables).items() if not n.endswith(ADAPTERS)}
    own, theirs = (
        {name: tuple(v.shape) for name, v in values.items() if not name.endswith(SEED_STATE)}
        for values in (weights, stored)
    )
    for name in select_weights(own, theirs, init, report):
        weights[name].assign(stored[name])


def restore_variables(file: Path, variables: NamedVariables, what: str = "model") -> None:
    """Assign the arrays in a file of a checkpoint. Raises CheckpointError, which names `what`, if they are others."""
    stored = _read(file)
    # a learning rate that callbacks may set is a variable, that of a schedule is not: either may be missing
    rates = {name for name in stored.keys() ^ variables.keys() if name.endswith("/learning_rate")}
    stored, variables = (
        {name: v for name, v in values.items() if name not in rates} for values in (stored, variables)
    )
    shapes = {name: a.shape for name, a in stored.items() if a.dtype.kind in "biufV"}  # V: bfloat16
    if {name: tuple(v.shape) for name, v in variables.items()} != shapes:
        raise CheckpointError(
            f"{file} was written with another {what}; use the configuration that the run was started with."
        )
    for name, variable in variables.items():
        variable.assign(stored[name])


def _read(file: Path) -> dict[str, np.ndarray]:
    """Return all arrays by name, but no pickled objects: unpickling can run code."""
    refuse_compressed(file)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # numpy raises many types for damaged files
        raise CheckpointError(
            f"{file} is damaged, or holds more than numbers ({error}). "
            "Move its folder away to resume from the checkpoint before it."
        ) from error
