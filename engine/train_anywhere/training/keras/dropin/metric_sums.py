"""Metrics of a user's model: the states of its Keras metrics, and other numbers that its steps return."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy


class Metrics:
    """The Keras metrics of a model. Their states are sums over rows, so the state over all ranks is the sum of the ranks' states.

    Args:
        model: a model whose metrics are built.
        strategy: the strategy of its variables.

    Raises:
        ConfigError: there are several replicas, and the state of a metric may not be a sum.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self.model, self.strategy = model, strategy
        tracked = {id(v): v for v in (*_variables(model.metrics), *model.metrics_variables)}
        self.variables = list(tracked.values())
        if strategy.replicas > 1:
            refuse_unsummable(model.metrics)

    def take(self) -> list[float]:
        """Return the states as a list of numbers, summed over the replicas of this process."""
        numbers: list[float] = []
        for variable in self.variables:
            copies = [np.asarray(v, np.float64) for v in self.strategy.local_values(variable)]
            numbers += np.ravel(sum(copies)).tolist()
        return numbers

    def arrays(self, numbers: Iterable[float]) -> list[np.ndarray]:
        """Return the numbers of `take` as arrays in the shapes of the variables."""
        left, arrays = iter(numbers), []
        for variable in self.variables:
            flat = [next(left) for _ in range(math.prod(variable.shape))]
            arrays.append(np.array(flat).reshape(tuple(variable.shape)))
        return arrays

    def restore(self, arrays: list[np.ndarray]) -> None:
        """Continue from these states: the first replica gets them, the others start at zero."""
        for variable, array in zip(self.variables, arrays, strict=True):
            for number, copy in enumerate(self.strategy.local_values(variable)):
                copy.assign(tf.cast(array if number == 0 else np.zeros_like(array), copy.dtype))

    def results(self, numbers: Iterable[float]) -> dict[str, float]:
        """Return the metrics by the names of `keras.Model.get_metrics_result`, computed from the numbers of `take`."""
        states = {
            id(v): tf.constant(a, v.dtype) for v, a in zip(self.variables, self.arrays(numbers), strict=True)
        }
        results: dict[str, float] = {}
        for metric in self.model.metrics:
            result = metric.stateless_result([states[id(v)] for v in metric.variables])
            results |= flatten_result(result if isinstance(result, dict) else {metric.name: result})
        return results


def flatten_result(result: dict[str, Any]) -> dict[str, float]:
    """Return one number per name; a metric with several values, such as one per class, becomes name_0, name_1, ..."""
    flat: dict[str, float] = {}
    for name, value in result.items():
        values = np.asarray(value, np.float64)
        numbers = (
            {name: values} if values.ndim == 0 else {f"{name}_{n}": v for n, v in enumerate(values.flat)}
        )
        flat |= {key: float(number) for key, number in numbers.items()}
    return flat


def refuse_unsummable(metrics: Iterable[keras.metrics.Metric]) -> None:
    """Raise ConfigError for a metric with states and its own update_state or result, whose states may not be sums over rows."""
    for metric in metrics:
        for name in ("update_state", "result"):
            method = getattr(type(metric), name)
            if metric.variables and not method.__module__.startswith("keras."):
                raise ConfigError(
                    f"the metric '{metric.name}' is a {type(metric).__name__} with its own {name}, so its states may not be sums that "
                    "can be added over ranks or devices; use metrics of Keras (keras.metrics.Mean with the value of each row), or "
                    "trainer.devices=1."
                )


def _variables(metrics: Iterable[keras.metrics.Metric]) -> list[keras.Variable]:
    return [v for metric in metrics for v in metric.variables]


class StepLogs:
    """Means over rows of other numbers that steps return; they are added up only when read, which waits for the device."""

    def __init__(self) -> None:
        self.totals: dict[str, list[float]] = {}
        self.names: list[str] = []
        self._waiting: list[tuple[dict[str, tf.Tensor], tf.Tensor]] = []

    def reset(self) -> None:
        """Forget all numbers."""
        self.totals, self._waiting = {}, []

    def add(self, replicas: Iterable[tuple[dict[str, tf.Tensor], tf.Tensor]]) -> None:
        """Add the numbers that a step has returned on each replica, with the number of its rows."""
        self._waiting += replicas

    def add_waiting(self) -> None:
        """Wait for the device, and add the numbers of all steps to the totals."""
        for logs, rows in self._waiting:
            for name, value in logs.items():
                total = self.totals.setdefault(name, [0.0, 0.0])
                total[0] += float(value) * int(rows)
                total[1] += int(rows)
            self.names = list(logs)
        self._waiting = []

    def take(self) -> list[float]:
        """Return the sum and the number of rows of each name, in the order of the names."""
        self.add_waiting()
        return [number for name in sorted(self.totals) for number in self.totals[name]]

    def means(self, numbers: list[float]) -> dict[str, float]:
        """Return the means, from the numbers of `take` summed over processes."""
        pairs = zip(sorted(self.totals), numbers[::2], numbers[1::2], strict=True)
        return {name: total / rows for name, total, rows in pairs if rows}


def return_logs_and_rows(
    step: Callable[[Any], Any],
) -> Callable[[Any], tuple[dict[str, tf.Tensor], tf.Tensor]]:
    """Return a function that runs `step`, and returns its scalars by name and the number of rows of the batch."""

    def run(data: Any) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        logs = step(data)
        named = logs if isinstance(logs, dict) else {}
        numbers = {k: tf.convert_to_tensor(v) for k, v in named.items() if not isinstance(v, dict)}
        scalars = {k: tf.cast(v, tf.float64) for k, v in numbers.items() if v.shape.rank == 0}
        rows = next(tf.shape(t)[0] for t in tf.nest.flatten(data) if t.shape.rank)
        return scalars, rows

    return run
