"""Metrics of a user's model: its Keras metrics, and other numbers that its steps return."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy

ROWS = ""
"""The name of the number of rows among the values that a step returns on a replica."""


class Metrics:
    """The Keras metrics of a model, whose states are sums that replicas can add up, and the values that its last step returned.

    Attributes:
        variables: the states.
        returned: what the last step returned on each replica, read from the device only if it is used.

    Raises:
        ConfigError: there are several replicas, and the state of a metric may not be a sum.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self.model, self.strategy = model, strategy
        found = [*(v for metric in model.metrics for v in metric.variables), *model.metrics_variables]
        self.variables = list({id(v): v for v in found}.values())
        self.returned: dict[str, Any] = {}
        self._names = list[str]()
        self._local = tf.distribute.get_strategy().experimental_local_results
        for metric in model.metrics if strategy.replicas > 1 else ():
            # an own `result` only reads the sums
            if metric.variables and not type(metric).update_state.__module__.startswith("keras."):
                raise ConfigError(
                    f"the metric '{metric.name}' is a {type(metric).__name__} with its own update_state, so its states may not be sums "
                    "that can be added over ranks or devices; use metrics of Keras (keras.metrics.Mean with the value of each row), or "
                    "trainer.devices=1."
                )

    def take(self) -> list[float]:
        """Return the states as numbers, summed over the replicas of this process."""
        local = self.strategy.local_values
        totals = (sum(np.asarray(v, np.float64) for v in local(one)) for one in self.variables)
        return [number for total in totals for number in np.ravel(total).tolist()]

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

    def keep(self, returned: dict[str, Any]) -> dict[str, Any]:
        """Keep what a step returned, and return no logs: they are shared when they are needed."""
        self.returned = returned
        return {}

    def take_values(self) -> list[float]:
        """Return each value of the last step, and 1 if it is the result of its metric, then the rows, summed over the local replicas.

        The values count by the rows of each replica.
        """
        copies = zip(*map(self._local, self.returned.values()), strict=True)
        replicas = [flatten_result(dict(zip(self.returned, one, strict=True))) for one in copies]
        rows = [one.pop(ROWS) for one in replicas]
        here = [self.strategy.local_values(v) for v in self.variables]
        known = [self._compute([copies[n] for copies in here]) for n in range(len(replicas))]
        self._names, numbers = [*replicas[0]] if replicas else [], list[float]()
        for name in self._names:
            pairs = [(one[name], own.get(name, math.nan)) for one, own in zip(replicas, known, strict=True)]
            same = all(math.isclose(*pair, rel_tol=1e-6) for pair in pairs)
            numbers += [sum(a * n for (a, _), n in zip(pairs, rows, strict=True)), float(same)]
        return [*numbers, sum(rows)]

    def means(self, numbers: Sequence[float]) -> dict[str, float]:
        """Return the values by name, from numbers that end with those of `take_values`."""
        *sums, rows = numbers[len(numbers) - 2 * len(self._names) - 1 :]
        return {name: total / rows for name, total in zip(self._names, sums[::2], strict=True)}

    def results(self, numbers: Sequence[float]) -> dict[str, float]:
        """Return the metrics over all replicas or, as `fit`, the values of the last step if it returned others."""
        metrics = self._compute(self.arrays(numbers))
        values = self.means(numbers)
        if not values or values.keys() == metrics.keys():
            return metrics
        flags = numbers[len(numbers) - 2 * len(values) : -1 : 2]
        own = [name for name, ranks in zip(values, flags, strict=True) if ranks == self.strategy.processes]
        return values | {name: metrics[name] for name in own}

    def _compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the metrics that these states give."""
        by_id = {id(v): tf.cast(state, v.dtype) for v, state in zip(self.variables, states, strict=True)}
        found: dict[str, Any] = {}
        for metric in self.model.metrics:
            result = metric.stateless_result([by_id[id(v)] for v in metric.variables])
            found |= result if isinstance(result, dict) else {metric.name: result}
        return flatten_result(found)


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
