"""A `fit` for Keras' own tests, which starts a run of this project.

It goes through `train` of the engine, with the model, data and callbacks that the test passes instead of those that a configuration names.
Arrays become the batches that Keras makes of them. `evaluate` and `predict` stay those of Keras.
"""

import shutil
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils, get_data_adapter

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.data.dataset import Splits
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.keras import run
from train_anywhere.training.keras.dropin import model, user_callbacks

for name in ("jax", "jax.experimental", "jax.experimental.sparse"):
    sys.modules.setdefault(name, ModuleType(name))  # the tests import it for another backend


KERAS_FIT = TensorFlowTrainer.fit


class SetByProject(Exception):
    """The test needs an argument that this project sets itself, or a value that it refuses."""


@cache
def default_tree() -> dict[str, Any]:
    """Return the composed configuration of a user's model on one CPU."""
    words = ["framework=keras", "task._target_=keras.Sequential", "data._target_=keras.utils.PyDataset", "trainer.accelerator=cpu",
             "trainer.devices=1", "monitor.progress=none", "monitor.report=false", "monitor.sample_seconds=null",
             "checkpoint.local=null"]  # fmt: skip
    return compose(to_hydra_overrides(words))


def to_batches(x: Any, y: Any, sample_weight: Any, **named: Any) -> Any:
    """Return the data of `fit` as it is if it has its own batches, else the batches that Keras makes of it."""
    own = isinstance(x, tf.data.Dataset | keras.utils.PyDataset) or hasattr(x, "__next__")
    if own and named.get("class_weight") is None:
        return x
    adapter = get_data_adapter(x=x, y=y, sample_weight=sample_weight, **named)
    count = adapter.num_batches
    return adapter.get_tf_dataset().apply(
        tf.data.experimental.assert_cardinality(-2 if count is None else count)
    )


def fit(
    self: Any, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1, verbose: Any = "auto",
    callbacks: Any = None, validation_split: float = 0.0, validation_data: Any = None, shuffle: bool = True, class_weight: Any = None,
    sample_weight: Any = None, initial_epoch: int = 0, steps_per_epoch: int | None = None, validation_steps: int | None = None,
    validation_batch_size: int | None = None, validation_freq: Any = 1,
) -> Any:  # fmt: skip
    """Train a model as a run in a new folder, and return the history."""
    if (
        initial_epoch
        or not isinstance(validation_freq, int)
        or isinstance(callbacks, keras.callbacks.CallbackList)
    ):
        raise SetByProject("initial_epoch, a list as validation_freq, or a CallbackList")
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
            (x, y, sample_weight), validation_split
        )
    train = to_batches(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        class_weight=class_weight,
        steps_per_epoch=steps_per_epoch,
    )
    val = None
    if validation_data is not None:
        parts = data_adapter_utils.unpack_x_y_sample_weight(validation_data)
        val = to_batches(*parts, batch_size=validation_batch_size or batch_size, shuffle=False)
    keys: dict[str, Any] = {"max_epochs": epochs, "check_val_every_n_epoch": validation_freq}
    keys |= {"limit_train_batches": steps_per_epoch} if steps_per_epoch else {}
    keys |= {"limit_val_batches": validation_steps} if validation_steps else {}
    try:
        config = load(default_tree() | {"trainer": default_tree()["trainer"] | keys})
    except ConfigError as error:
        raise SetByProject(str(error)) from error
    self.history = keras.callbacks.History()
    own = [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else [*(callbacks or ())]
    sections = {
        str(n): SimpleNamespace(target={"keras": "given"}, given=one)
        for n, one in enumerate([*own, self.history])
    }
    make_callbacks, folder = user_callbacks.make_callbacks, Path(tempfile.mkdtemp(prefix="peer-test-"))
    instead = {
        model: {"make_model": lambda _: self},
        run: {"open_splits": lambda *_: Splits(train, val),
              "make_callbacks": lambda _, *values: make_callbacks(sections, *values), "seed_everything": lambda _: None},
        user_callbacks: {"instantiate": lambda section, *_: section.given},
        keras.utils: {"clear_session": lambda: None},
    }  # fmt: skip
    try:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(TensorFlowTrainer, "fit", KERAS_FIT))
            for module, names in instead.items():
                stack.enter_context(mock.patch.multiple(module, **names))
            run.train(config, RankProcess(RunDir(folder), Topology(), Stop()))
    except ConfigError as error:
        raise error.__cause__ or SetByProject(str(error)) from error
    except ProjectError as error:
        if not str(error).startswith("nothing was trained"):
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return self.history


def install() -> None:
    """Put this function in place of the one of Keras."""
    TensorFlowTrainer.fit = fit
