"""The training step and the test step of a model, and the metrics that they count."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.training.keras.dropin.gradients import (
    Base,
    NamedVariables,
    build_optimizer,
    name_variables,
    read_flags,
    weight_averages,
)
from train_anywhere.training.keras.optim import make_rate_reader
from train_anywhere.training.keras.strategies.base import Strategy

Batch = tuple[Any, tf.Tensor]
"""Rows of the data set as tensors [b, ...], and their weights, float32 [b]; with accumulation both have a first dimension [k, b, ...]."""

StepFunction = Callable[[Iterator[Any]], Any]
"""A function that trains or tests on the next batch."""

StepsFunction = Callable[[Iterator[Any], tf.Tensor], Any]
"""A function that trains on the next batches; their number is the second argument, int32 []."""


class RunningSums:
    """The sums of `Task.sums` over batches, kept on the device. Only reading waits for it.

    Each replica has its own sums, so adding needs no communication.
    """

    def __init__(self, count: int) -> None:
        self._zeros = tf.zeros(count, tf.float64)
        # each replica has its own, float64 [count], which counts exactly
        kinds = {
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        self.sums = tf.Variable(self._zeros, trainable=False, **kinds)
        self.distribution = tf.distribute.get_strategy()

    def add(self, sums: tf.Tensor) -> None:
        """Add the sums of a batch, float64 [count]."""
        self.sums.assign_add(sums)

    def take(self) -> list[float]:
        """Return the sums of this process since the last call."""
        replicas = self._replicas()
        values = [replica.numpy() for replica in replicas]
        for replica in replicas:
            replica.assign(self._zeros)
        return [float(v) for v in sum(values)]

    def peek(self) -> list[float]:
        """Return the same sums without resetting them."""
        return [float(v) for v in sum(r.numpy() for r in self._replicas())]

    def _replicas(self) -> tuple[tf.Variable, ...]:
        return self.distribution.experimental_local_results(self.sums)


class Module:
    """A model on a strategy with its steps and metrics, for native tasks and users' models.

    Attributes:
        model: the model that callbacks see, and whose variables a checkpoint holds.
        learning_rate: returns the learning rate of the last optimizer step.
        unit: plural name of what is counted, such as "samples".
        counts_units: whether a row holds several units, counted by `units`.
        multi_step: whether a call can make more than one training step.
        notes: lines for the user, printed once.
        flags: `trainable` of all layers and variables when the steps were traced.
        base: the weights that `model.lora` freezes; None without adapters.
    """

    unit = "samples"
    counts_units = multi_step = False

    def __init__(
        self,
        model: keras.Model,
        strategy: Strategy,
        base: Base | None = None,
        optimizers: Sequence[keras.optimizers.Optimizer] = (),
        no_decay: Sequence[str] = (),
    ) -> None:
        self.model, self.strategy, self.base = model, strategy, base
        self.optimizers, self.no_decay = optimizers, no_decay
        self.distribution = tf.distribute.get_strategy()
        self.learning_rate: Callable[[], float] = lambda: 0.0
        self.metric_names: list[str] = []
        self.notes: list[str] = []
        self.flags, self._averages_always = read_flags(model), False
        self._weights: NamedVariables | None = None
        self.train_function: StepsFunction
        self.test_function: StepFunction
        self.test_last: Callable[[Any], Any]

    def read_rate_of(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Report the learning rate of this optimizer."""
        self.learning_rate = make_rate_reader(optimizer)

    def average_always(self) -> None:
        """Include averages that an optimizer itself copies to the weights in `swap_averages`."""
        self._averages_always = True

    def keep_weights(self, weights: NamedVariables) -> None:
        """Use these variables as `weights` from now on, also if layers are added or removed."""
        self._weights = weights

    def trace(self) -> None:
        """Create the functions that train and test, which are traced at their first calls."""
        raise NotImplementedError

    def optimized_variables(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Return the optimizers that a step calls, each with the variables that it updates."""
        raise NotImplementedError

    def update_trainable(self) -> bool:
        """Trace again if other layers are trainable; return whether.

        Raises:
            ConfigError: an optimizer can't train additional variables.
        """
        if (flags := read_flags(self.model)) == self.flags:
            return False
        self.flags = flags
        with self.strategy.scope():
            for optimizer, variables in self.optimized_variables():
                build_optimizer(optimizer, variables, self.no_decay)
                optimizer.apply.name += "."  # collectives of a new graph need new names
            self.trace()
        return True

    def trainable_state(self) -> dict[str, Any]:
        """Return which layers are trainable, and which variables have an optimizer state, for JSON."""
        numbers = {id(v): number for number, v in enumerate(self.model.variables)}
        known = [[v for v in o._trainable_variables if id(v) in numbers] for o in self.optimizers]
        built = [[numbers[id(v)] for v in variables] for variables in known]
        return {"flags": read_flags(self.model), "built": built}

    def restore_optimizers(self, built: Sequence[Sequence[int]]) -> None:
        """Create optimizer states for the same variables as when `trainable_state` was called."""
        variables = dict(enumerate(self.model.variables))
        with self.strategy.scope():
            for optimizer, numbers in zip(self.optimizers, built, strict=False):
                if used := [variables[n] for n in numbers if n in variables]:
                    build_optimizer(optimizer, used, self.no_decay)

    def swap_averages(self) -> bool:
        """Exchange weights and their moving averages bit for bit, and return whether there are any."""
        pairs = weight_averages(self.optimizers, self._averages_always)
        local = self.strategy.local_values
        for one, other in ((a, b) for pair in pairs for a, b in zip(*map(local, pair), strict=True)):
            value = tf.identity(one)
            one.assign(other)
            other.assign(value)
        return bool(pairs)

    def reset_metrics(self) -> None:
        """Reset the metrics at the start of an epoch or an evaluation, if `take` does not."""

    def take(self) -> list[float]:
        """Return the sums that this process has counted, to be summed over all processes."""
        raise NotImplementedError

    def peek(self) -> list[float]:
        """Return the result of `take` without resetting anything."""
        return self.take()

    def report(self, split: str, sums: list[float]) -> dict[str, float]:
        """Return the metrics of a split, computed from the sums of `take` over all processes."""
        raise NotImplementedError

    def report_batch(self, split: str, metrics: Mapping[str, float] | None) -> Mapping[str, float]:
        """Return the metrics up to the last batch: `metrics` over all ranks if just reported."""
        return metrics or self.report(split, self.peek())

    def units(self, sums: list[float]) -> float | None:
        """Return the number of units in the sums. None if each row is one unit."""
        return None

    def weights(self) -> NamedVariables:
        """Return the variables of a checkpoint by name. Raises ConfigError if the base is trained."""
        named = name_variables(self.model.variables) if self._weights is None else self._weights
        if self.base is None:
            return named
        self.base.refuse_trained()
        return {name: variable for name, variable in named.items() if name not in self.base.variables}

    def optimizer_state(self) -> NamedVariables:
        """Return all variables of the optimizers by name."""
        return name_variables([v for optimizer in self.optimizers for v in optimizer.variables])

    def metric_state(self) -> Mapping[str, Any]:
        """Return the metric states that span log intervals, by name. All processes call this."""
        return {}

    def restore_metric_state(self, arrays: Mapping[str, Any]) -> None:
        """Continue from the result of `metric_state`."""

    def continue_metrics(self, arrays: Mapping[str, Any]) -> None:
        """Continue from `metric_state` after a validation. All processes call this."""
        self.reset_metrics()
        first = self.strategy.rank == 0
        self.restore_metric_state(arrays if first else {name: 0 * array for name, array in arrays.items()})

    def moving_statistics(self) -> list[keras.Variable]:
        """Return the variables that each replica computes from its own rows."""
        return float_statistics(self.model._flatten_layers())

    def make_step_function(self, step: Callable[[Any], Any]) -> StepFunction:
        """Return a graph that runs `step` on the next batch of each replica."""
        distribution, pace = self.distribution, self.strategy.pace

        @tf.function(autograph=False)
        def run(iterator: Iterator[Any]) -> Any:
            batch = next(iterator)
            pace.mark_batch(batch)
            return distribution.run(step, args=(batch,))

        return run

    def make_steps_function(self, step: Callable[[Any], Any]) -> StepsFunction:
        """Return a graph that runs `step` on a given number of batches of each replica.

        The graph has no output: with one, TensorFlow's graph optimizer (Grappler) made a large convolutional network irreproducible on a
        CPU; without an output, or without that optimizer, its results were the same bit for bit.
        """
        distribution, pace = self.distribution, self.strategy.pace

        @tf.function(autograph=False)
        def run(iterator: Iterator[Any], count: tf.Tensor) -> None:
            def run_one(number: tf.Tensor) -> list[tf.Tensor]:
                batch = next(iterator)
                pace.mark_batch(batch)
                distribution.run(step, args=(batch,))
                return [number + 1]

            tf.while_loop(lambda number: number < count, run_one, [tf.constant(0)], parallel_iterations=1)

        return run


def float_statistics(layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """Return the float32 variables that layers never train. Frozen weights are not among them."""
    return [v for layer in layers for v in layer._non_trainable_variables if v.dtype == "float32"]


class TaskModule(Module):
    """The steps of a native task: weighted loss, gradient accumulation, exact metrics.

    The loss is the mean over rows of weight * the task's loss of the row, plus the losses that layers add. Its average over the ranks is
    the mean over all real rows.

    Args:
        network: the network, built, and compiled with an optimizer.
        accumulate: batches per optimizer step; above 1, each step gets a stack of them.
        jit_compile: whether XLA compiles the network with its loss and gradients; it can't compile collectives and reading data.
    """

    multi_step = True

    def __init__(
        self,
        network: keras.Model,
        task: Any,
        strategy: Strategy,
        accumulate: int,
        jit_compile: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(network, strategy, **options)
        self.task, self.accumulate, self.jit_compile = task, accumulate, jit_compile
        self.unit, self.metric_names = task.unit, task.names("train", "val", "test")
        self.counts_units = task.unit in task.sums
        self.sums = RunningSums(len(task.sums))
        self.trace()

    def trace(self) -> None:
        """Create the functions that train and test."""
        if self.jit_compile:
            step = partial(type(self).compute_gradients, self)
            self.compute_gradients = tf.function(step, autograph=False, jit_compile=True)  # type: ignore[method-assign]
        self.train_function = self.make_steps_function(self.train_step)
        self.test_function = self.make_step_function(self.test_step)

    def optimized_variables(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Return the network's optimizer with all trainable variables."""
        return [(self.model.optimizer, self.model.trainable_variables)]

    def train_step(self, data: Batch) -> None:
        """Make one optimizer step, which averages the gradients."""
        gradients = self.compute_gradients(data) if self.accumulate == 1 else self.accumulate_gradients(data)
        self.model.optimizer.apply(gradients, self.model.trainable_variables)

    def test_step(self, data: Batch) -> None:
        """Add the sums of one batch."""
        batch, weight = data
        _, sums = self.task.step(self.model, batch, weight, training=False)
        self.sums.add(tf.cast(sums, tf.float64))

    def compute_gradients(self, data: Batch) -> list[tf.Tensor]:
        """Return the gradients of one batch's share of the loss, and add the sums of the batch."""
        batch, weight = data
        with tf.GradientTape() as tape:
            losses, sums = self.task.step(self.model, batch, weight, training=True)
            loss = tf.reduce_mean(weight * losses)
            loss = tf.add_n([loss, *(tf.cast(extra, loss.dtype) for extra in self.model.losses)])
            share = loss if self.accumulate == 1 else loss / self.accumulate
            loss = self.model.optimizer.scale_loss(share)
        self.sums.add(tf.cast(sums, tf.float64))
        return tape.gradient(loss, self.model.trainable_variables)

    def accumulate_gradients(self, data: Batch) -> list[tf.Tensor]:
        """Return the summed gradients of a stack of batches, with one batch in memory at a time."""

        def compute(number: tf.Tensor | int) -> list[tf.Tensor | None]:
            return self.compute_gradients(tf.nest.map_structure(lambda stack: stack[number], data))

        def add(number: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            new = [g for g in compute(number) if g is not None]
            return number + 1, [s + tf.convert_to_tensor(g) for s, g in zip(sums, new, strict=True)]

        first = compute(0)
        used = [tf.convert_to_tensor(g) for g in first if g is not None]
        sums = iter(tf.while_loop(lambda n, _: n < self.accumulate, add, (tf.constant(1), used))[1])
        return [None if g is None else next(sums) for g in first]

    def take(self) -> list[float]:
        """Return the task's sums since the last call."""
        return self.sums.take()

    def peek(self) -> list[float]:
        """Return the same sums without resetting them."""
        return self.sums.peek()

    def report(self, split: str, sums: list[float]) -> dict[str, float]:
        """Return the task's metrics."""
        metrics: dict[str, float] = self.task.report(split, sums)
        return metrics

    def units(self, sums: list[float]) -> float | None:
        """Return the number of units that the task has counted. None if each row is one unit."""
        return self.task.units(sums)
