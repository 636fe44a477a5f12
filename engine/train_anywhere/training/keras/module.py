"""A model as a run trains it: its step functions, variables and metrics."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.errors import ConfigError, RanksDifferError, listed
from train_anywhere.training.keras.dropin.gradients import (
    AveragingApply,
    Base,
    NamedVariables,
    find_parts,
    name_variables,
    read_flags,
    set_flags,
)
from train_anywhere.training.keras.optim import make_rate_reader
from train_anywhere.training.keras.private import skip_build
from train_anywhere.training.keras.strategies.base import Strategy


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


def to_numbers(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return logs as Keras' callbacks get them, single values as numbers."""
    found = flatten_logs(logs or {})
    for name, value in found.items():
        with suppress(TypeError, ValueError):
            found[name] = float(value)
    return found


ROWS = ""
"""The name of the number of rows among the values that a step returns on a replica."""


class Module:
    """A model with its own steps, or with those of Keras for its compiled loss, on a strategy.

    On one device `fit` calls the functions that Keras makes. On several, `train_function` and `test_function` of the model are replaced:
    those of Keras reduce what a step returns over all workers in each step, or fail (https://github.com/keras-team/keras/issues/20585).
    The states of metrics are sums that replicas can add up. Raises ConfigError if they may be others on several replicas.

    Args:
        model: the model that callbacks see. Its variables and those of its metrics and optimizers exist.
        network: the network of `model=`; None if the model brings its own.
        extra: variables that the steps use and the model does not track.
        base: the weights that `model.lora` freezes; None without adapters.
        spec: types and shapes of a replica's batch of training.
        accumulate: batches per optimizer step; above 1, each step gets a stack of them.
        rate_of: the optimizer whose learning rate is reported, if any.
        jit_compile: whether XLA compiles the step without the optimizer; it can't compile collectives and reading data.

    Attributes:
        learning_rate: returns the learning rate of the last optimizer step.
        notes: lines for the user, printed once.
        logs: what the last step has returned, on several devices for each replica: it is read only if it is used.
        metric_variables: the states of the metrics.
        rows: a variable with the rows that a single device has trained; 0 if they are not counted.
        flags: `trainable` of all layers and variables when the training step was traced; None: it will be traced.
        saved_flags: those of the checkpoint, with which this process traces the step.
    """

    def __init__(
        self,
        model: keras.Model,
        network: keras.Model | None,
        strategy: Strategy,
        extra: NamedVariables,
        applies: Sequence[AveragingApply],
        base: Base | None = None,
        spec: Any = None,
        accumulate: int = 1,
        jit_compile: bool = False,
        rate_of: keras.optimizers.Optimizer | None = None,
    ) -> None:
        self.model, self.network, self.strategy, self.base = model, network, strategy, base
        self.spec, self.extra, self.applies = spec, extra, applies
        self.accumulate, self.jit_compile = accumulate, jit_compile
        self.optimizers = [apply.optimizer for apply in applies]
        # `fit` writes the averages of `use_ema` over the weights, in `write_averages` instead
        for optimizer in self.optimizers:
            optimizer.finalize_variable_values = lambda trainable_variables: None
        self.distribution = tf.distribute.get_strategy()
        self.learning_rate = make_rate_reader(rate_of) if rate_of else lambda: 0.0
        self.notes: list[str] = []
        self.logs: Mapping[str, Any] = {}
        self._weights: NamedVariables | None = None
        found = [*(v for metric in model.metrics for v in metric.variables), *model.metrics_variables]
        self.metric_variables = list({id(v): v for v in found}.values())
        self.several = strategy.replicas > 1
        self._names = list[str]()
        with tf.device("CPU:0"):
            self.rows = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.flags: list[bool] | None = None
        self.saved_flags: list[bool] | None = None
        self._make = model.make_train_function
        model.make_train_function = self.make_again
        self.make_functions()

    def make_again(self, force: bool = False) -> None:
        """Trace the training step again if a callback requires it: `make_train_function` of the model."""
        if force:
            self.flags = self.saved_flags = None
            for apply in self.applies:
                apply.name += "."  # collectives of a new graph need new names
            self.make_functions()

    def make_functions(self) -> None:
        """Create the functions that train and test, which are traced at their first calls."""
        model, step = self.model, self._train_step()
        if self.several:
            self._refuse_own_updates()
            model.steps_per_execution = 1
            model.train_function = self._step_function(step)
            model.test_function = self._step_function(model.test_step)
            model.train_function = self._trace_with_flags(model.train_function)
            skip_build(model)
            return
        if self.network is not None:
            model.jit_compile = False  # XLA compiles the part of `_train_step`

        def marked(data: Any) -> Any:
            self.strategy.pace.mark("batch", data)
            tensors = (one for one in tf.nest.flatten(data) if isinstance(one, tf.Tensor) and one.shape.rank)
            if (first := next(tensors, None)) is not None:
                rows = tf.reduce_prod(tf.shape(first, tf.int64)[: 1 + (self.accumulate > 1)])
                with tf.device("CPU:0"):
                    self.rows.assign_add(rows)
            return step(data)

        model.train_step = step if model.run_eagerly or model.jit_compile else marked
        self._make(force=True)
        del model.train_step
        model.make_test_function(force=True)
        if not model.run_eagerly:
            model.train_function = self._trace_with_flags(model.train_function)

    def _trace_with_flags(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function for the first call, which traces the step: with `saved_flags`, also if callbacks have set others since."""

        def trace(iterator: Any) -> Any:
            own = read_flags(self.model)
            self.flags, self.saved_flags = self.saved_flags or own, None
            set_flags(self.model, self.flags)
            try:
                return function(iterator)
            finally:
                set_flags(self.model, own)
                self.model.train_function = function

        return trace

    def _step_function(self, step: Callable[[Any], Any]) -> Callable[[Iterator[Any]], Any]:
        """Return a graph that runs `step` on the next batch of each replica."""

        def on_replica(data: Any) -> dict[str, Any]:
            logs = step(data)
            flat = flatten_logs(logs) if isinstance(logs, dict) else {}
            first = next(one for one in tf.nest.flatten(data) if one is not None and one.shape.rank)
            return {n: tf.convert_to_tensor(v) for n, v in flat.items()} | {ROWS: tf.shape(first)[0]}

        @tf.function(autograph=False)
        def run(iterator: Iterator[Any]) -> Any:
            batch = next(iterator)
            self.strategy.pace.mark("batch", batch)
            return self.distribution.run(on_replica, args=(batch,))

        return run

    def measure(self, split: str, data: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of a split over all ranks, without callbacks. `data` are arguments of `evaluate`."""
        self.logs = self.model.evaluate(**data, return_dict=True, verbose=0)
        return self.report(split, self.strategy.sum_arrays(self.take()))

    def _train_step(self) -> Callable[[Any], Any]:
        """Return the model's training step, or one that applies its gradients after it."""
        if self.accumulate == 1 and not self.jit_compile:
            return self.model.train_step
        applies = [one for one in self.applies if one.variables]
        if len(applies) != 1:
            raise ConfigError(
                f"the step of a {type(self.model).__name__} calls {len(applies)} optimizers, and trainer.accumulate_grad_batches and "
                "trainer.compile need one; leave them out."
            )
        (apply,) = applies
        train_step = self.model.train_step

        def record(data: Any) -> tuple[Any, list[Any]]:
            with apply.capture() as gradients:
                return train_step(data), gradients

        compute: Callable[[Any], Any] = record
        if self.jit_compile:
            compute = tf.function(record, autograph=False, jit_compile=True)

        def step(data: Any) -> Any:
            logs, gradients = compute(data) if self.accumulate == 1 else self._accumulate(compute, data)
            apply(gradients, apply.recorded)
            return logs

        return step

    def _accumulate(self, compute: Callable[[Any], Any], data: Any) -> tuple[Any, list[Any]]:
        """Return the last logs and the mean gradients of a stack of batches, with one in memory at a time."""

        def one(number: tf.Tensor | int) -> tuple[Any, list[Any]]:
            return compute(tf.nest.map_structure(lambda stack: stack[number], data))

        def add(number: tf.Tensor, _: Any, sums: list[tf.Tensor]) -> tuple[tf.Tensor, Any, list[tf.Tensor]]:
            logs, gradients = one(number)
            new = [tf.convert_to_tensor(g) for g in gradients if g is not None]
            return number + 1, logs, [s + g for s, g in zip(sums, new, strict=True)]

        logs, first = one(0)
        start = (tf.constant(1), logs, [tf.convert_to_tensor(g) for g in first if g is not None])
        _, logs, sums = tf.while_loop(lambda number, *_: number < self.accumulate, add, start)
        means = iter([s / self.accumulate for s in sums])
        return logs, [None if g is None else next(means) for g in first]

    def keep_weights(self, weights: NamedVariables) -> None:
        """Use these variables as `weights` from now on, also if layers are added or removed."""
        self._weights = weights

    def write_averages(self) -> None:
        """Write the averages of `use_ema` over the weights, as `fit` does when training ends."""
        for one in self.applies:
            if one.optimizer is self.model.optimizer and one.variables:
                type(one.optimizer).finalize_variable_values(one.optimizer, one.variables)

    def _refuse_own_updates(self) -> None:
        for metric in self.model.metrics:
            # an own `result` only reads the sums
            if metric.variables and not type(metric).update_state.__module__.startswith("keras."):
                raise ConfigError(
                    f"the metric '{metric.name}' is a {type(metric).__name__} with its own update_state, so its states may not be sums "
                    "that can be added over ranks or devices; use metrics of Keras (keras.metrics.Mean with the value of each row), or "
                    "trainer.devices=1."
                )

    def metric_state(self) -> list[np.ndarray]:
        """Return the states of the metrics over all replicas. All processes call this."""
        return self.strategy.sum_arrays(self._metric_sums())

    def restore_metrics(self, states: Sequence[Any]) -> None:
        """Continue from these states, of which each replica gets an equal part: steps may return values of their replica's part."""
        replicas = self.strategy.replicas
        # user code may have added or removed metrics since
        for variable, state in zip(self.metric_variables, states, strict=False):
            copies, total = self.strategy.local_values(variable), np.asarray(state, np.float64)
            part = (total / replicas).astype(copies[0].dtype.as_numpy_dtype)
            rest = total - part.astype(np.float64) * (replicas - 1)  # the first one has what rounding leaves
            for number, copy in enumerate(copies, self.strategy.rank * len(copies)):
                copy.assign(part if number else rest.astype(part.dtype))

    def _metric_sums(self) -> list[np.ndarray]:
        """Return the states, summed over the replicas of this process."""
        local = self.strategy.local_values
        states = ([np.asarray(copy, np.float64) for copy in local(v)] for v in self.metric_variables)
        return [np.sum(copies, axis=0) for copies in states]

    def take(self) -> list[np.ndarray]:
        """Return what `report` needs of this process: the states of the metrics, then the values of the last step."""
        return [*self._metric_sums(), *self._take_values()] if self.several else []

    def _take_values(self) -> list[np.ndarray]:
        """Return the values of the last step, times the rows of each local replica; 1 for each result of its metric; the rows."""
        copies = zip(*map(self.distribution.experimental_local_results, self.logs.values()), strict=True)
        replicas = [flatten_result(dict(zip(self.logs, one, strict=True))) for one in copies]
        rows = [one.pop(ROWS) for one in replicas]
        here = [self.strategy.local_values(v) for v in self.metric_variables]
        known = [self._compute([copies[n] for copies in here]) for n in range(len(replicas))]
        self._names = [*replicas[0]] if replicas else []
        totals, same = [], []
        for name in self._names:
            pairs = [(one[name], own.get(name, math.nan)) for one, own in zip(replicas, known, strict=True)]
            totals.append(sum(value * count for (value, _), count in zip(pairs, rows, strict=True)))
            same.append(all(math.isclose(*pair, rel_tol=1e-6) for pair in pairs))
        return [np.array(totals), np.array(same, float), np.array(sum(rows))]

    def _means(self, totals: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return the values of the last step by name."""
        return dict(zip(self._names, (totals / rows).tolist(), strict=True))

    def _results(self, sums: Sequence[np.ndarray]) -> dict[str, float]:
        """Return the metrics over all replicas or, as `fit`, the values of the last step if it returned others."""
        *states, totals, same, rows = sums
        metrics, values = self._compute(states), self._means(totals, rows)
        if not values or values.keys() == metrics.keys():
            return metrics
        own = [n for n, ranks in zip(values, same, strict=True) if ranks == self.strategy.processes]
        return values | {name: metrics[name] for name in own}

    def _compute(self, states: Sequence[Any]) -> dict[str, float]:
        """Return the metrics that these states give."""
        pairs = zip(self.metric_variables, states, strict=True)
        by_id = {id(v): tf.cast(state, v.dtype) for v, state in pairs}
        found: dict[str, Any] = {}
        for metric in self.model.metrics:
            result = metric.stateless_result([by_id[id(v)] for v in metric.variables])
            found |= result if isinstance(result, dict) else {metric.name: result}
        return flatten_result(found)

    def report(self, split: str, sums: Sequence[np.ndarray]) -> dict[str, float]:
        """Return what Keras reports, by names such as `val/loss`, which stands first."""
        if self.several:
            values = self._results(sums)
        else:
            logs, results = self.logs if isinstance(self.logs, dict) else {}, self.model.get_metrics_result()
            values = flatten_result(to_numbers(results if logs.keys() == results.keys() else logs))
        return {f"{split}/{name}": values[name] for name in sorted(values, key=lambda name: name != "loss")}

    def batch_logs(self) -> dict[str, Any]:
        """Return what the last step has returned, over the replicas of this process."""
        if not self.several:
            return to_numbers(self.logs)
        totals, _, rows = self._take_values()
        return self._means(totals, rows)

    def weights(self) -> NamedVariables:
        """Return the variables of a checkpoint by name. Raises ConfigError if the base is trained."""
        named = name_variables(self.model.variables) if self._weights is None else self._weights
        if self.base is not None:
            if thawed := [name for name, variable in self.base.variables.items() if variable.trainable]:
                raise ConfigError(
                    f"{thawed[0]} became trainable, and checkpoints of a run with model.lora leave it out; name its layer in "
                    "model.lora.train."
                )
            named = {name: variable for name, variable in named.items() if name not in self.base.variables}
        return {**named, **self.extra}

    def optimizer_state(self) -> NamedVariables:
        """Return all variables of the optimizers by name."""
        return name_variables([v for optimizer in self.optimizers for v in optimizer.variables])

    def moving_statistics(self) -> list[keras.Variable]:
        """Return the float32 ones of batch normalization. Other variables must be equal on all ranks.

        They are linear in the batches, so averaging them may be late.
        """
        layers = find_parts(self.model, keras.layers.BatchNormalization)
        pairs = ((one, v) for one in layers for v in one.non_trainable_variables)
        return [v for one, v in pairs if v.dtype == "float32" and v is not one.gamma and v is not one.beta]

    def refuse_different_weights(self) -> None:
        """Raise RanksDifferError if replicas have different weights. All processes call this."""
        strategy = self.strategy
        if strategy.replicas == 1:
            return
        variables = [v for v in self.weights().values() if v.name != "seed_generator_state"]
        strategy.average_variables(self.moving_statistics())
        values, digests = [strategy.local_values(v) for v in variables], list[int]()
        for replica in range(strategy.local):
            digest = hashlib.blake2b(digest_size=6)  # 48 bits, which float64 holds
            for copies in values:
                digest.update(copies[min(replica, len(copies) - 1)].numpy().tobytes())
            digests.append(int.from_bytes(digest.digest()))
        sums = [number for row in strategy.gather(digests) for number in row]
        what = "rank" if strategy.processes > 1 else "device"
        if others := [str(n) for n, one in enumerate(sums) if one != sums[0]]:
            raise RanksDifferError(
                f"the weights of {what}{'s' if len(others) > 1 else ''} {listed(others)} of {len(sums)} are not those of {what} 0: "
                f"the model changes them separately on each {what} (weights that are changed without an optimizer, or a state that depends "
                f"on the rows); the checkpoints hold those of {what} 0."
            )
