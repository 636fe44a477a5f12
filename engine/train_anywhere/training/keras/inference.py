"""Open the trained Keras model of a run on one device, to measure, use and export it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.schema import Config
from train_anywhere.data.array_data import stack
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.tf.pipeline import plain_data_errors
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.keras.batches import DropInLoader, TaskLoader
from train_anywhere.training.keras.checkpoint import (
    check_base,
    read_state,
    restore_weights,
)
from train_anywhere.training.keras.dropin.gradients import add_adapters
from train_anywhere.training.keras.dropin.model import open_dropin
from train_anywhere.training.keras.loop.epochs import make_test
from train_anywhere.training.keras.module import Module, TaskModule
from train_anywhere.training.keras.native import POLICIES, call_once, dtype_policy
from train_anywhere.training.keras.run import load_initial_weights
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.keras.strategies.choose import make_strategy
from train_anywhere.training.plan import build_network, limit_batches


def open_trained_model(config: Config, folder: Path) -> "TrainedModel":
    """Return the model of a run with a checkpoint's weights. Raises CheckpointError etc."""
    tf.config.experimental.enable_tensor_float_32_execution(config.trainer.tf32)
    strategy = make_strategy("single", config, Topology(), 1)
    keras.utils.clear_session()  # resets the numbers in layer names, and so in the paths of variables
    keras.utils.set_random_seed(config.seed)
    splits = open_splits(config.data, "keras", config.seed)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        task = instantiate(config.task, "task", "keras")
    loader: TaskLoader | DropInLoader
    if isinstance(task, Task):
        module, loader = _open_native(config, strategy, splits, task)
    else:
        module, loader, _ = open_dropin(config, strategy, splits, task)
    if module.base:  # a checkpoint does not hold it
        load_initial_weights(config.init, module, lambda line: None)
        check_base(str(folder), module, read_state(folder / "state.json")["lora"])
    restore_weights(folder, module.weights())
    return TrainedModel(config, module, loader, task if isinstance(task, Task) else None, splits.facts)


def _open_native(config: Config, strategy: Strategy, splits: Splits, task: Task) -> tuple[Module, TaskLoader]:
    """Return the module, without an optimizer, and the batches of a native task."""
    loader = TaskLoader(config, strategy, splits, task)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        network = build_network(config, splits.facts)
        if not network.built:
            call_once(network, task, loader.splits["train"], loader.prepare)
        base = add_adapters(network, config, whole=False)
        return TaskModule(network, task, strategy, accumulate=1, base=base), loader


@dataclass
class TrainedModel:
    """A trained model and its data.

    Attributes:
        facts: facts about the data set, such as the number of classes.
    """

    config: Config
    module: Module
    loader: Any
    task: Task | None
    facts: Mapping[str, Any]

    @property
    def network(self) -> keras.Model:
        """The network of a native task, or the user's `keras.Model`."""
        return self.module.model

    @property
    def train_split(self) -> Any:
        """The data that the model was trained on."""
        split = self.loader.splits["train"]
        return getattr(split, "dataset", split)  # of a map-style data set, which `Samples` reads

    def predict_rows(self, rows: DataSet) -> Any:
        """Return what the network of a native task returns for rows, arrays [n, ...]."""
        loader = copy(self.loader)
        loader.splits = {**self.loader.splits, "test": rows}
        with plain_data_errors():
            return replace(self, loader=loader)._predict("test", loader.count_batches("test"))

    def predict_arrays(self, array: np.ndarray) -> Any:
        """Return what the user's own model returns for rows [n, ...]."""
        return self.network.predict(array, batch_size=self.config.data.batch_size, verbose=0)

    def predict_samples(self, samples: Sequence[Any]) -> Any:
        """Return what `predict_step` of the user's own model returns for rows of its data set."""
        batches = tf.data.Dataset.from_tensor_slices(stack([*samples])).batch(self.config.data.batch_size)
        return self.network.predict(batches, verbose=0)

    @property
    def generate(self) -> Callable[[list[int], int, float, int], list[int]] | None:
        """A function that continues a sequence of tokens. None without `generate` of the task."""
        own: Any = getattr(self.task, "generate", None)
        return own and (lambda *arguments: own(self.network, *arguments))

    def list_splits(self, predicting: bool = False) -> list[str]:
        """Return the splits that the data has, the best one to report first."""
        return [split for split in ("test", "val", "train") if self.loader.splits[split] is not None]

    def measure(self, split: str, predicting: bool = False) -> tuple[dict[str, float], Any]:
        """Return the metrics of a split, measured as the run's own test does, and predictions.

        With `predicting` these are arrays [n, ...] in the order of the rows, else None. Raises ConfigError without such a split.
        """
        if self.loader.splits[split] is None:
            raise ConfigError(f"data={self.config.data.name} has no {split} split.")
        limit = getattr(self.config.trainer, f"limit_{split}_batches")
        count = limit_batches(self.loader.count_batches(split), limit, False)
        with plain_data_errors():
            self.module.reset_metrics()
            self.module.take()
            test_batch = make_test(self.module, self.loader, split, count)
            for number in range(count):
                test_batch(number)
            metrics = self.module.report(split, self.module.take())
            return metrics, self._predict(split, count) if predicting else None

    def _predict(self, split: str, count: int) -> Any:
        """Return the output of the model for each row without padding, which has weight 0."""
        whole, last = self.loader.evaluation(split, count)
        parts: Iterable[tf.data.Dataset] = [whole] if last is None else [whole, last]
        predict = tf.function(self._predict_batch, autograph=False)
        batches = [
            tf.nest.map_structure(_to_numpy, predict(batch)) for part in parts for batch in part.take(count)
        ]
        if not batches:
            raise ConfigError("there is no row to predict.")
        return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *batches)

    def _predict_batch(self, data: Any) -> Any:
        if self.task is None:
            return self.network.predict_step(data)
        rows, weight = data
        recording = _RecordingNetwork(self.network)
        self.task.step(recording, rows, weight, training=False)  # type: ignore[attr-defined]
        return tf.nest.map_structure(lambda t: tf.boolean_mask(t, weight > 0), recording.outputs[-1])

    def export(self, format: str, path: Path) -> None:
        """Write a file for Keras ("keras") or a folder for serving.

        Raises:
            CheckpointError: the model can't be written in this format.
        """
        model = self.network
        try:
            if format == "keras":
                type(model).from_config(model.get_config())  # fails now rather than when Keras opens the file
                model.compiled = False  # leaves out the optimizer, whose schedule is a class of this package
                model.save(path)
            else:
                model.export(path, verbose=False)
        except Exception as error:  # Keras raises many types for a model that it can't serialize
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            other = "; use --export savedmodel." if format == "keras" else ""
            raise CheckpointError(
                f"--export {format}: this model can't be written so: {why.rstrip('.')}{other}"
            ) from error


class _RecordingNetwork:
    """A network that records its outputs and has all attributes of the network."""

    def __init__(self, network: keras.Model) -> None:
        self.network = network
        self.outputs: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.outputs.append(self.network(*arguments, **named))
        return self.outputs[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)


def _to_numpy(value: Any) -> np.ndarray:
    """Convert a tensor to numpy. bfloat16, which numpy does not have, becomes float32."""
    return np.asarray(tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value)
