"""A trained model for new data: files or arrays in, predictions out."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.schema import Config
from train_anywhere.data.array_data import flatten_arrays, stack
from train_anywhere.data.dataset import Arrays
from train_anywhere.errors import ConfigError


def csv_table(columns: Mapping[str, Iterable[Any]]) -> str:
    """Return columns of one length, by name, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


@dataclass(frozen=True)
class Predictions:
    """Predictions for new data, in its order.

    Attributes:
        outputs: arrays [n, ...] that the model returned, by name; a single one is `predictions`.
        files: names of the files; empty for arrays.
        class_names: names of the classes; empty if the data has none.
    """

    outputs: Mapping[str, np.ndarray]
    files: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def probabilities(self) -> np.ndarray:
        """Probabilities of classes, float64 [n, classes], or their softmax.

        Raises:
            ConfigError: the outputs are not a number for each class.
        """
        scores = next(iter(self.outputs.values()))
        if len(self.outputs) != 1 or scores.ndim != 2 or scores.shape[1] < 2:
            raise ConfigError("the outputs of this model are not one number for each class; use `.outputs`.")
        scores = scores.astype(np.float64)
        if scores.min() >= 0 and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
            return np.asarray(scores)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    @property
    def labels(self) -> list[Any]:
        """The most probable class of each row: its name, or its number if classes have no names."""
        best = self.probabilities.argmax(axis=1).tolist()
        return [self.class_names[k] for k in best] if self.class_names else best

    def table(self) -> str:
        """Return a CSV table with the columns file, label, probability."""
        most = [f"{p:.6f}" for p in self.probabilities.max(axis=1)]
        return csv_table({"file": self.files or range(len(most)), "label": self.labels, "probability": most})


@dataclass(frozen=True)
class NewRows:
    """Files or arrays as a data set: `prepare` returns a row for each, with any target, when it is read."""

    items: Sequence[Any]
    prepare: Any

    def __len__(self) -> int:
        return len(self.items)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the rows, see `DataSet.read`."""
        return stack([self.prepare(self.items[i]) for i in indices])


class Predictor:
    """The trained model of a run, with the attributes of its network.

    Attributes:
        network: the network: a torch module in eval mode, or a `keras.Model`.
        class_names: names of the classes; empty if the data has none.
    """

    def __init__(self, model: Any, config: Config) -> None:
        self._model, self.config = model, config
        self._own = task_has_network(config.task, config.framework)
        self.network = model.network
        self.class_names: tuple[str, ...] = tuple(model.facts.get("class_names", ()))

    def predict(self, items: Any) -> Predictions:
        """Predict for new data, prepared like the data of the run but never augmented.

        Args:
            items: a file, a list of files, or an array [n, ...] with the rows as the data set stores them.

        Raises:
            ConfigError: the data set of the run does not read such items.
            DataError: a file can't be read.
        """
        listed = [items] if isinstance(items, str | Path) else list(items)
        if not listed:
            raise ConfigError("there is nothing to predict: give at least one file or row.")
        files = tuple(str(item) for item in listed if isinstance(item, str | Path))
        if self._own and not files:
            rows = np.asarray(items)
            rows = rows.astype(np.float32) if rows.dtype == np.float64 else rows
            outputs = self._model.predict_arrays(rows)
        else:
            outputs = self._model.predict_rows(NewRows(listed, self._row_maker(bool(files))))
        return Predictions(flatten_arrays(outputs), files, self.class_names)

    def _row_maker(self, files: bool) -> Any:
        own = self._own
        places = (self._model.train_split, *([self.network] if own else []))
        maker = next((found for place in places if (found := getattr(place, "row_of", None))), None)
        if maker is None:
            kind = "files" if files else "arrays"
            whose = "data set, data module or model" if own else "data set"
            like = "a row of the data set" if own else "a row as read() does"
            raise ConfigError(
                f"data={self.config.data.name} does not say how {kind} become rows: give its {whose} a method row_of(item) that "
                f"returns {like}, with any target; or call the network yourself."
            )
        return maker

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the network as a prediction does, so a Keras layer is not in training mode unless `training=True` is passed."""
        return self.network(*arguments, **{**self._model.call_arguments, **named})

    def __getattr__(self, name: str) -> Any:
        if name == "network":  # a copy that is not initialized yet
            raise AttributeError(name)
        return getattr(self.network, name)
