"""Metrics of a user's model: its Keras metrics, and other numbers that its steps return."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy


class Metrics:
    """The Keras metrics of a model. Their states are sums, so ranks can add them up.

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
        # user code may have added or removed metrics since
        for variable, array in zip(self.variables, arrays, strict=False):
            for number, copy in enumerate(self.strategy.local_values(variable)):
                copy.assign(tf.cast(array if number == 0 else np.zeros_like(array), copy.dtype))

    def results(self, numbers: Iterable[float]) -> dict[str, float]:
        """Return the metrics by their Keras names, computed from the numbers of `take`."""
        states = {
            id(v): tf.constant(a, v.dtype) for v, a in zip(self.variables, self.arrays(numbers), strict=True)
        }
        results: dict[str, float] = {}
        for metric in self.model.metrics:
            result = metric.stateless_result([states[id(v)] for v in metric.variables])
            results |= flatten_result(result if isinstance(result, dict) else {metric.name: result})
        return results


def flatten_result(result: Mapping[str, Any]) -> dict[str, float]:
    """Return one number per name. Several values of a metric become name_0, name_1, ..., and others are left out."""
    flat: dict[str, float] = {}
    for name, value in result.items():
        with suppress(TypeError, ValueError):  # a string
            values = np.asarray(value, np.float64)
            flat |= zip(number_names(name, values), values.ravel().tolist(), strict=True)
    return flat


def flatten_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs without nested dicts, sorted by name, as Keras' callbacks get them."""
    found: dict[str, Any] = {}
    for name, value in sorted(logs.items()):
        found |= flatten_logs(value) if isinstance(value, dict) else {name: value}
    return found


def number_names(name: str, value: Any) -> list[str]:
    """Return the names of the numbers in a value, a number or an array of static shape."""
    shape = getattr(value, "shape", ())
    return [f"{name}_{n}" for n in range(math.prod(side or 0 for side in shape))] if len(shape) else [name]


def refuse_unsummable(metrics: Iterable[keras.metrics.Metric]) -> None:
    """Raise ConfigError for a metric whose states may not be sums over rows."""
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
    """The values that the last step has returned, read from the device only if used.

    Each replica returns its own. Their mean is weighted by rows: those of the epoch so far for a value that is computed from metrics,
    else those of the batch.

    Attributes:
        last: the values of the last step, the rows of the epoch for those that are computed from metrics and for the results of
            metrics under their own names, and the rows of the batch.
        names: names of the numbers that `take` has returned.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.names = list[str]()
        self.local = tf.distribute.get_strategy().experimental_local_results
        self.last: tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any] = {}, {}, {}, 1.0
        self._rows = keras.metrics.Sum(name="rows", dtype="float64")
        local, self._states = metrics.strategy.local_values, list[tuple[str, set[int]]]()
        for metric in metrics.model.metrics:
            handles = {id(v.handle) for variable in metric.variables for v in local(variable)}
            self._states.append((metric.name, handles))
        metrics.variables.extend(self._rows.variables)

    def reset(self) -> None:
        """Forget the rows of the epoch."""
        self._rows.reset_state()

    def keep(self, last: tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]) -> dict[str, Any]:
        """Keep what a wrapped step has returned, and return no logs: they are shared when they are needed."""
        self.last = last
        return {}

    def wrap(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that runs `step`, and returns its values, flat by name, and weights."""

        def run(data: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
            logs = step(data)
            flat = flatten_logs(logs if isinstance(logs, dict) else {})
            values = {name: tf.convert_to_tensor(value) for name, value in flat.items()}
            rows = tf.cast(
                next(tf.shape(t)[0] for t in tf.nest.flatten(data) if t is not None and t.shape.rank),
                tf.float64,
            )
            self._rows.update_state(rows)
            total = tf.convert_to_tensor(self._rows.variables[0])
            used = {name: captured_by(value) for name, value in values.items()}
            running = {name: total for name, ids in used.items() if any(ids & own for _, own in self._states)}
            results = {
                name: total
                for name in running
                for metric, own in self._states
                if used[name] <= own and metric in (name, "compile_metrics")
            }
            return values, running, results, rows

        return run

    def take(self) -> list[float]:
        """Return each number's weighted sum over the local replicas, and the sum of the weights."""
        values, totals, _, rows = self.last
        numbers, self.names = list[float](), []
        for key, value in values.items():
            copies = [flatten_result({key: copy}) for copy in self.local(value) if copy.dtype != tf.string]
            weights = [float(w) for w in self.local(totals.get(key, rows))]
            for name in copies[0] if copies else ():
                self.names.append(name)
                shares = (copy[name] * weight for copy, weight in zip(copies, weights, strict=True))
                numbers += [sum(shares), sum(weights)]
        return numbers

    def means(self, numbers: list[float]) -> dict[str, float]:
        """Return the values, from the numbers of `take` summed over processes."""
        pairs = zip(self.names, numbers[::2], numbers[1::2], strict=True)
        return {name: total / weight if weight else math.nan for name, total, weight in pairs}


def captured_by(value: tf.Tensor) -> set[int]:
    """Return the ids of what a tensor is computed from outside of its graph, such as variables."""
    outside = {id(inner): id(outer) for outer, inner in value.graph.captures}
    waiting, seen = [value], set[int]()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            waiting += tensor.op.inputs
    return {outside[known] for known in seen & outside.keys()}
