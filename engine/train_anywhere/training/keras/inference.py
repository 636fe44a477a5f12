"""After training with Keras: the model of a run on one device, measured, used and exported."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.tf.pipeline import plain_data_errors
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.keras.batches import DropInLoader, TaskLoader
from train_anywhere.training.keras.checkpoint.random_state import seed_everything
from train_anywhere.training.keras.checkpoint.state import restore_weights
from train_anywhere.training.keras.dropin.model import open_dropin
from train_anywhere.training.keras.module import Module, TaskModule
from train_anywhere.training.keras.native import POLICIES, call_once, dtype_policy
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.keras.strategies.choose import make_strategy
from train_anywhere.training.native_network import build_network
from train_anywhere.training.plan import limited


def open_trained(config: Config, folder: Path) -> "Trained":
    """The model of a run with the weights in the folder of a checkpoint. The configuration is one for a single device.

    Raises:
        CheckpointError: they can't be read, or are those of another model.
        ConfigError, DataError: the model can't be made.
    """
    tf.config.experimental.enable_tensor_float_32_execution(config.trainer.tf32)
    strategy = make_strategy("single", config, Topology(), 1)
    keras.utils.clear_session()  # layer names, and so the paths of variables, count from the start
    seed_everything(config.seed)
    splits = open_splits(config.data, "keras", config.seed)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        task = instantiate(config.task, "task", "keras")
    loader: TaskLoader | DropInLoader
    if isinstance(task, Task):
        module, loader = _native(config, strategy, splits, task)
    else:
        module, loader, _ = open_dropin(config, strategy, splits, task)
    restore_weights(folder, module.weights())
    return Trained(config, module, loader, task if isinstance(task, Task) else None, splits.facts)


def _native(config: Config, strategy: Strategy, splits: Splits, task: Task) -> tuple[Module, TaskLoader]:
    """Network and batches, without an optimizer."""
    loader = TaskLoader(config, strategy, splits, task)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        network = build_network(config, splits.facts)
        if not network.built:
            call_once(network, task, loader.parts["train"], loader.prepare)
        return TaskModule(network, task, strategy, accumulate=1), loader


@dataclass
class Trained:
    """A model and what it was trained on.

    Attributes:
        task: the native one, or None.
        facts: what the data set says of itself.
    """

    config: Config
    module: Module
    loader: Any
    task: Task | None
    facts: Mapping[str, Any]

    @property
    def network(self) -> keras.Model:
        """Of a native task, or a `keras.Model` of anyone."""
        return self.module.model

    @property
    def generate(self) -> Callable[[list[int], int, float, int], list[int]] | None:
        """Continues tokens; None for a task that does not."""
        own: Any = getattr(self.task, "generate", None)
        return own and (lambda *arguments: own(self.network, *arguments))

    def measurable(self, predicting: bool = False) -> list[str]:
        """Return the splits that the data has, the best one to report first."""
        return [split for split in ("test", "val", "train") if self.loader.parts[split] is not None]

    def measure(self, split: str, predicting: bool = False) -> tuple[dict[str, float], Any]:
        """The metrics of a split, as the run's own test measures them, and what the model answers to its rows.

        Args:
            predicting: collect the answers: arrays [n, ...] in the order of the rows.

        Raises:
            ConfigError: there is no such split.
        """
        if self.loader.parts[split] is None:
            raise ConfigError(f"data={self.config.data.name} has no {split} split.")
        limit = getattr(self.config.trainer, f"limit_{split}_batches")
        count = limited(self.loader.batches(split), limit, False)
        with plain_data_errors():
            self._count(split, count)
            metrics = self.module.report(split, self.module.take())
            return metrics, self._answers(split, count) if predicting else None

    def _count(self, split: str, count: int) -> None:
        self.module.begin(split)
        self.module.take()
        whole, last = self.loader.evaluation(split, count)
        iterator = iter(whole)
        for number in range(count):
            if last is not None and number == count - 1:
                self.module.test_last(next(iter(last)))
            else:
                self.module.test_function(iterator)

    def _answers(self, split: str, count: int) -> Any:
        """What the model returns for each row; rows of weight 0 are padding."""
        whole, last = self.loader.evaluation(split, count)
        parts: Iterable[tf.data.Dataset] = [whole] if last is None else [whole, last]
        answer = tf.function(self._answer, autograph=False)
        batches = [
            tf.nest.map_structure(_array, answer(batch)) for part in parts for batch in part.take(count)
        ]
        if not batches:
            raise ConfigError("there is no row to predict.")
        return tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *batches)

    def _answer(self, data: Any) -> Any:
        if self.task is None:
            return self.network.predict_step(data)
        rows, weight = data
        recording = Recording(self.network)
        self.task.step(recording, rows, weight, training=False)  # type: ignore[attr-defined]
        return tf.nest.map_structure(lambda t: tf.boolean_mask(t, weight > 0), recording.answers[-1])

    def export(self, format: str, path: Path) -> None:
        """Write the model: "keras", a file that Keras opens; or "savedmodel", a folder that TensorFlow serves.

        Raises:
            CheckpointError: the model can't be written in this format.
        """
        model = self.network
        try:
            if format == "keras":
                type(model).from_config(model.get_config())  # as Keras will open it: better now than never
                model.compiled = (
                    False  # how it was trained is the run's, and its schedule of ours would be in the file
                )
                model.save(path)
            else:
                model.export(path, verbose=False)
        except Exception as error:  # Keras raises nearly anything at a model that it can't describe
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            other = "; use --export savedmodel." if format == "keras" else ""
            raise CheckpointError(
                f"--export {format}: this model can't be written so: {said.rstrip('.')}{other}"
            ) from error


class Recording:
    """A network that remembers what it returned; for anything else it is the network itself."""

    def __init__(self, network: keras.Model) -> None:
        self.network = network
        self.answers: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.answers.append(self.network(*arguments, **named))
        return self.answers[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network, name)


def _array(value: Any) -> np.ndarray:
    """bfloat16, which numpy does not have, as float32."""
    return np.asarray(tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value)
