"""What a drop-in model counts: the states of its metrics, and the numbers that its steps return beside them."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy


class Metrics:
    """The metrics of a model. Their states are sums over rows, so that of all ranks is the sum of the ranks' ones.

    Args:
        model: whose metrics are built.
        strategy: of its variables.

    Raises:
        ConfigError: several replicas, and a metric whose state may be no sum.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self.model, self.strategy = model, strategy
        tracked = {id(v): v for v in (*_variables(model.metrics), *model.metrics_variables)}
        self.variables = list(tracked.values())
        if strategy.replicas > 1:
            refuse_unsummable(model.metrics)

    def take(self) -> list[float]:
        """The states, summed over the replicas of this process."""
        taken: list[float] = []
        for variable in self.variables:
            copies = [np.asarray(v, np.float64) for v in self.strategy.local_values(variable)]
            taken += np.ravel(sum(copies)).tolist()
        return taken

    def arrays(self, taken: Iterable[float]) -> list[np.ndarray]:
        """What `take` gave, in the shapes of the variables."""
        numbers, arrays = iter(taken), []
        for variable in self.variables:
            flat = [next(numbers) for _ in range(math.prod(variable.shape))]
            arrays.append(np.array(flat).reshape(tuple(variable.shape)))
        return arrays

    def restore(self, arrays: list[np.ndarray]) -> None:
        """Count on from these states: they are given to one replica, and the others begin at zero."""
        for variable, array in zip(self.variables, arrays, strict=True):
            for number, copy in enumerate(self.strategy.local_values(variable)):
                copy.assign(tf.cast(array if number == 0 else np.zeros_like(array), copy.dtype))

    def results(self, taken: Iterable[float]) -> dict[str, float]:
        """The metrics by their names, as `keras.Model.get_metrics_result` has them."""
        states = {
            id(v): tf.constant(a, v.dtype) for v, a in zip(self.variables, self.arrays(taken), strict=True)
        }
        results: dict[str, float] = {}
        for metric in self.model.metrics:
            result = metric.stateless_result([states[id(v)] for v in metric.variables])
            results |= flat_result(result) if isinstance(result, dict) else flat_result({metric.name: result})
        return results


def flat_result(result: dict[str, Any]) -> dict[str, float]:
    """Numbers by name; of a metric that has several, such as one for each of some groups, name_0, name_1, ..."""
    flat: dict[str, float] = {}
    for name, value in result.items():
        values = np.asarray(value, np.float64)
        numbers = (
            {name: values} if values.ndim == 0 else {f"{name}_{n}": v for n, v in enumerate(values.flat)}
        )
        flat |= {key: float(number) for key, number in numbers.items()}
    return flat


def refuse_unsummable(metrics: Iterable[keras.metrics.Metric]) -> None:
    """Raise ConfigError for a metric with a state, or a way to count, that Keras' own metrics do not have."""
    for metric in metrics:
        for name in ("update_state", "result"):
            method = getattr(type(metric), name)
            if metric.variables and not method.__module__.startswith("keras."):
                raise ConfigError(
                    f"the metric '{metric.name}' is a {type(metric).__name__} with its own {name}, and nothing says that the sum of what "
                    "several ranks or devices have counted is what one would have; use metrics of Keras (keras.metrics.Mean with the "
                    "value of each row), or trainer.devices=1."
                )


def _variables(metrics: Iterable[keras.metrics.Metric]) -> list[keras.Variable]:
    return [v for metric in metrics for v in metric.variables]


class Logged:
    """Numbers that a step returns and that are no metrics: their means over rows, without a wait for the device in between."""

    def __init__(self) -> None:
        self.totals: dict[str, list[float]] = {}
        self.names: list[str] = []
        self._waiting: list[tuple[dict[str, tf.Tensor], tf.Tensor]] = []

    def reset(self) -> None:
        """Begin anew."""
        self.totals, self._waiting = {}, []

    def add(self, replicas: Iterable[tuple[dict[str, tf.Tensor], tf.Tensor]]) -> None:
        """What a step has returned on each replica, with the number of its rows."""
        self._waiting += replicas

    def fold(self) -> None:
        """Wait for the device, and add up."""
        for logs, rows in self._waiting:
            for name, value in logs.items():
                total = self.totals.setdefault(name, [0.0, 0.0])
                total[0] += float(value) * int(rows)
                total[1] += int(rows)
            self.names = list(logs)
        self._waiting = []

    def take(self) -> list[float]:
        """Sums and rows, by the order of names."""
        self.fold()
        return [number for name in sorted(self.totals) for number in self.totals[name]]

    def means(self, taken: list[float]) -> dict[str, float]:
        """From what `take` gave, summed over processes."""
        pairs = zip(sorted(self.totals), taken[::2], taken[1::2], strict=True)
        return {name: total / rows for name, total, rows in pairs if rows}


def counted_step(step: Callable[[Any], Any]) -> Callable[[Any], tuple[dict[str, tf.Tensor], tf.Tensor]]:
    """`step`, which returns its scalars by name, and the number of rows of the batch."""

    def run(data: Any) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        logs = step(data)
        named = logs if isinstance(logs, dict) else {}
        numbers = {k: tf.convert_to_tensor(v) for k, v in named.items() if not isinstance(v, dict)}
        scalars = {k: tf.cast(v, tf.float64) for k, v in numbers.items() if v.shape.rank == 0}
        rows = next(tf.shape(t)[0] for t in tf.nest.flatten(data) if t.shape.rank)
        return scalars, rows

    return run
