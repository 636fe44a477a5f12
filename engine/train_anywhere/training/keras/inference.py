"""Open the trained Keras model of a run on one device, to measure, use and export it so that the export answers as `predict` does."""

import inspect
from collections.abc import Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.data.array_data import check_answers
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.tf.pipeline import plain_data_errors
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.training.keras.batches import Loader
from train_anywhere.training.keras.checkpoint import (
    check_base,
    load_initial_weights,
    read_state,
    restore_variables,
)
from train_anywhere.training.keras.dropin.gradients import find_layers
from train_anywhere.training.keras.dropin.model import open_model
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.strategies.choose import make_strategy
from train_anywhere.training.plan import limit_batches


def open_trained_model(config: Config, folder: Path, splits: Splits | None = None) -> "TrainedModel":
    """Return the model of a run with a checkpoint's weights, and with `splits` in place of its data. Raises CheckpointError etc."""
    tf.config.experimental.enable_tensor_float_32_execution(config.trainer.tf32)
    strategy = make_strategy("single", config, Topology(), 1)
    keras.utils.clear_session()  # resets the numbers in layer names, and so in the paths of variables
    keras.utils.set_random_seed(config.seed)
    splits = splits or open_splits(config.data, "keras", config.seed)
    module, loader, _ = open_model(config, strategy, splits)
    if module.base:  # a checkpoint does not hold it
        load_initial_weights(config.init, module, lambda line: None)
        check_base(str(folder), module, read_state(folder / "state.json")["lora"])
    restore_variables(folder / "weights.npz", module.weights())
    return TrainedModel(config, module, loader, splits.facts)


class TrainedModel:
    """A trained model and its data.

    Attributes:
        facts: facts about the data set, such as the number of classes.
        network: the network of `model=`, or the user's `keras.Model`.
        call_arguments: arguments with which a prediction calls the network.
        train_split: the data that the model was trained on.
        generate: continues a sequence of tokens; None without `generate` of a task that gets its network.
    """

    def __init__(self, config: Config, module: Module, loader: Loader, facts: Mapping[str, Any]) -> None:
        self.config, self.module, self.loader, self.facts = config, module, loader, facts
        self.network = module.network or module.model
        self.call_arguments = inference_arguments(self.network)
        split = loader.splits["train"]
        self.train_split = getattr(split, "dataset", split)  # of a map-style data set, which `Samples` reads
        self.generate = getattr(module.model, "generate", None) if module.network else None

    def predict_rows(self, rows: DataSet) -> Any:
        """Return what the model predicts for rows, arrays [n, ...]."""
        with plain_data_errors():
            return self._predict(self._evaluation(rows, 1.0))

    def predict_arrays(self, array: np.ndarray) -> Any:
        """Return what the user's own model returns for rows [n, ...]."""
        return self.network.predict(array, batch_size=self.config.data.batch_size, verbose=0)

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
        with plain_data_errors():
            data = self._evaluation(self.loader.splits[split], limit)
            return self.module.measure(split, data), self._predict(data) if predicting else None

    def _evaluation(self, rows: Any, limit: int | float) -> dict[str, Any]:
        """Return arguments of `evaluate` and `predict` for the rows of any split, in their order and with the last ones."""
        loader = copy(self.loader)
        loader.splits = {**loader.splits, "test": rows}
        count = limit_batches(loader.count_batches("test"), limit, False)
        if not count:
            raise ConfigError("there is no row to measure or to predict.")
        return loader.evaluation("test", count)

    def _predict(self, data: dict[str, Any]) -> Any:
        """Return the output of the model for each row."""
        return tf.nest.map_structure(_to_numpy, self.module.model.predict(**data, verbose=0))

    def export(self, format: str, path: Path) -> None:
        """Write a file for Keras ("keras") or a folder for serving ("savedmodel"), see `export_model`."""
        export_model(self.network, format, path, self._inputs())

    def _inputs(self) -> Any:
        """Return what the network gets for the first rows of the data, arrays [n, ...]."""
        seen: list[Any] = []

        def record(inputs: Any, *arguments: Any, **named: Any) -> Any:
            seen.append(inputs)
            return type(self.network).call(self.network, inputs, *arguments, **named)

        first = self.loader.evaluation(self.list_splits()[0], 1)["x"]
        batch = first[0] if isinstance(first, keras.utils.PyDataset) else next(iter(first))
        self.network.call = record
        try:
            self.module.model.predict_step(batch)
        finally:
            del self.network.call
        return tf.nest.map_structure(lambda rows: np.asarray(rows)[:8], seen[0])


def _to_numpy(value: Any) -> np.ndarray:
    """Return an array; one of bfloat16, which numpy does not have, as float32."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def inference_arguments(model: keras.Model) -> dict[str, bool]:
    """Return the arguments with which Keras' `predict` calls a model.

    Without `training=False` an augmentation layer puts all layers after it into training mode
    (https://github.com/keras-team/keras/issues/20985).
    """
    return {"training": False} if "training" in inspect.signature(model.call).parameters else {}


def export_model(model: keras.Model, format: str, path: Path, rows: Any) -> None:
    """Write a file for Keras ("keras") or a folder for serving ("savedmodel"), and compare its answers with `predict`.

    `rows` are inputs of the model, arrays [n, ...], for the comparison. Raises CheckpointError: the model can't be written so, or the
    written model answers differently.
    """
    arguments = inference_arguments(model)
    expected = [model(rows, **arguments) for _ in range(2)]
    try:
        if format == "keras":
            classes = {type(layer).__name__: type(layer) for layer in find_layers(model)}
            with keras.saving.custom_object_scope(classes):
                type(model).from_config(model.get_config())  # fails now rather than when Keras opens the file
            model.compiled = False  # leaves out the optimizer, whose schedule is a class of this package
            model.save(path)
        else:
            archive, answer = keras.export.ExportArchive(), partial(model, **arguments)
            archive.track(model)
            known = getattr(model, "input", None)  # of a functional model: the shapes that it was made with
            signature = tf.nest.map_structure(
                lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), rows if known is None else known
            )
            archive.add_endpoint("serve", lambda inputs: answer(inputs), [signature])
            archive.write_out(str(path), verbose=False)
    except Exception as error:  # Keras raises many types for a model that it can't serialize
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        other = "; use --export savedmodel." if format == "keras" else "."
        raise CheckpointError(
            f"--export {format}: this model can't be written so: {why.rstrip('.')}{other}"
        ) from error
    if format == "keras":
        try:
            read = partial(keras.saving.load_model(path, classes, compile=False), **arguments)
        except Exception:  # own functions in the model, which the reader of the file has to name
            print(
                "keras: not compared with the trained model: to load it, pass your functions as custom_objects."
            )
            return
    else:
        served = tf.saved_model.load(str(path))  # its functions do not keep its variables alive
        read = served.serve
    check_answers(format, expected, read(rows), half=model.compute_dtype != "float32")
