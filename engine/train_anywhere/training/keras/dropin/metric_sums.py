"""Metrics of a user's model: its Keras metrics, and other numbers that its steps return."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy

Returned = tuple[dict[str, Any], dict[str, Any], Any]
"""What a wrapped step returns on each replica: its values, those that are results of metrics under their names, and its rows."""


class Metrics:
    """The Keras metrics of a model, whose states are sums that replicas can add up, and the values that its last step returned.

    The values are read from the device only if they are used. Those of several replicas count by the rows of the batch.

    Attributes:
        variables: the states.
        last: what the last wrapped step returned.

    Raises:
        ConfigError: there are several replicas, and the state of a metric may not be a sum.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self.model, self.strategy = model, strategy
        states = [(metric.name, metric.variables) for metric in model.metrics]
        found = [*(v for _, variables in states for v in variables), *model.metrics_variables]
        self.variables = list({id(v): v for v in found}.values())
        self.last: Returned = {}, {}, 1.0
        self._names = list[str]()
        self._local = tf.distribute.get_strategy().experimental_local_results
        self._handles = [
            (name, {id(copy.handle) for v in variables for copy in strategy.local_values(v)})
            for name, variables in states
        ]
        if strategy.replicas > 1:
            refuse_unsummable(model.metrics)

    def take(self) -> list[float]:
        """Return the states as numbers, summed over the replicas of this process."""
        copies = (
            [np.asarray(v, np.float64) for v in self.strategy.local_values(one)] for one in self.variables
        )
        return [number for arrays in copies for number in np.ravel(sum(arrays)).tolist()]

    def arrays(self, numbers: Sequence[float]) -> list[np.ndarray]:
        """Return the numbers that start with those of `take` as arrays in the shapes of the variables."""
        parts = np.split(np.asarray(numbers), np.cumsum([math.prod(v.shape) for v in self.variables]))
        return [part.reshape(tuple(v.shape)) for v, part in zip(self.variables, parts, strict=False)]

    def restore(self, arrays: Sequence[np.ndarray]) -> None:
        """Continue from these states: the first replica gets them, the others start at zero."""
        # user code may have added or removed metrics since
        for variable, array in zip(self.variables, arrays, strict=False):
            for number, copy in enumerate(self.strategy.local_values(variable)):
                copy.assign(tf.cast(array if number == 0 else np.zeros_like(array), copy.dtype))

    def wrap(self, step: Callable[[Any], Any]) -> Callable[[Any], Returned]:
        """Return a function that runs a step on a replica."""

        def run(data: Any) -> Returned:
            logs = step(data)
            flat = flatten_logs(logs if isinstance(logs, dict) else {})
            values = {name: tf.convert_to_tensor(value) for name, value in flat.items()}
            first = next(one for one in tf.nest.flatten(data) if one is not None and one.shape.rank)
            rows, of_metrics = tf.cast(tf.shape(first)[0], tf.float64), {}
            for name, value in values.items():
                used = captured_by(value)
                if any(used and used <= own and n in (name, "compile_metrics") for n, own in self._handles):
                    of_metrics[name] = rows
            return values, of_metrics, rows

        return run

    def keep(self, returned: Returned) -> dict[str, Any]:
        """Keep what a wrapped step returned, and return no logs: they are shared when they are needed."""
        self.last = returned
        return {}

    def take_values(self) -> list[float]:
        """Return the sum of each value of the last step times its rows over the local replicas, then that of the rows."""
        values, _, rows = self.last
        copies = zip(*(self._local(value) for value in values.values()), strict=True)
        replicas = [flatten_result(dict(zip(values, one, strict=True))) for one in copies]
        weights = [float(w) for w in self._local(rows)]
        self._names = [*replicas[0]] if replicas else []
        sums = [sum(w * one[n] for w, one in zip(weights, replicas, strict=True)) for n in self._names]
        return [*sums, sum(weights)]

    def means(self, numbers: Sequence[float]) -> dict[str, float]:
        """Return the values by name, from numbers that end with those of `take_values`."""
        *sums, rows = numbers[-len(self._names) - 1 :]
        return {n: total / rows if rows else math.nan for n, total in zip(self._names, sums, strict=True)}

    def results(self, numbers: Sequence[float]) -> dict[str, float]:
        """Return what Keras reports: the values of the last step, or the metrics if it returned all of them.

        A metric that was returned under its own name is computed from the states of all replicas.
        """
        pairs = zip(self.variables, self.arrays(numbers), strict=True)
        states = {id(v): tf.constant(array, v.dtype) for v, array in pairs}
        found: dict[str, Any] = {}
        for metric in self.model.metrics:
            result = metric.stateless_result([states[id(v)] for v in metric.variables])
            found |= result if isinstance(result, dict) else {metric.name: result}
        metrics, values = flatten_result(found), self.means(numbers)
        if not values or values.keys() == metrics.keys():
            return metrics
        return values | {name: metrics[name] for name in self.last[1] if name in metrics}


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
