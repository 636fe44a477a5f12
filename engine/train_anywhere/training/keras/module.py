"""What the loop trains: a task of this project, as a training step and a test step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.training.keras.dropin.gradients import Saved, averages, build_optimizer, by_name
from train_anywhere.training.keras.dropin.trainable import read_built, read_flags
from train_anywhere.training.keras.strategies.base import Strategy

Batch = tuple[Any, tf.Tensor]
"""What the data set gives, as tensors, and weights float32 [b]; with accumulation [k, b, ...] each."""

StepFunction = Callable[[Iterator[Any]], Any]
"""Trains or tests on the next batch."""

StepsFunction = Callable[[Iterator[Any], tf.Tensor], Any]
"""Trains on so many next batches (int32 [])."""


class RunningSums:
    """Sums over batches by `Task.sums`, kept on the device: adding does not wait for it, taking them does.

    Each replica has its own, so counting needs no communication.

    Args:
        count: how many there are.
        watched: count the batches before the first whose sums are no numbers, see `features/replay/recompute.py`.
    """

    def __init__(self, count: int, watched: bool = False) -> None:
        self.sums = per_replica(count)
        self.batches = per_replica(2) if watched else None
        self.distribution = tf.distribute.get_strategy()
        self._zeros = tf.zeros(count, tf.float64)

    def add(self, sums: tf.Tensor) -> None:
        """Add the sums of a batch, float64 [count]."""
        self.sums.assign_add(sums)
        if self.batches is not None:
            good = tf.reduce_all(tf.math.is_finite(self.sums))
            self.batches.assign_add(tf.stack([tf.ones((), tf.float64), tf.cast(good, tf.float64)]))

    def counted(self) -> list[tuple[int, int]]:
        """Of each replica here: batches since the last call, and how many were good until one was not."""
        if self.batches is None:
            return []
        return [
            (int(batches), int(good)) for batches, good in self._taken(self.batches, tf.zeros(2, tf.float64))
        ]

    def take(self) -> list[float]:
        """The sums of this process since the last call."""
        return [float(v) for v in sum(self._taken(self.sums, self._zeros))]

    def peek(self) -> list[float]:
        """Return the same sums, and keep counting."""
        return [float(v) for v in sum(r.numpy() for r in self._replicas(self.sums))]

    def _taken(self, variable: tf.Variable, zeros: tf.Tensor) -> list[Any]:
        """What each replica here has, which begins at zero again."""
        replicas = self._replicas(variable)
        taken = [replica.numpy() for replica in replicas]
        for replica in replicas:
            replica.assign(zeros)
        return taken

    def _replicas(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        return self.distribution.experimental_local_results(variable)  # type: ignore[no-any-return]


def per_replica(count: int) -> tf.Variable:
    """Sums of each replica, float64 [count], which counts exactly."""
    return tf.Variable(
        tf.zeros(count, tf.float64),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


class Module:
    """What both doors have in common: a model on a strategy, and the numbers that it counts.

    Attributes:
        model: what callbacks see, and whose variables a checkpoint holds.
        optimizers: all that train it.
        rate: returns the learning rate of the last optimizer step.
        unit: what a row is, in the plural.
        counts_units: rows hold several of them, which `units` knows.
        several: a call can make more than one training step.
        known: metrics that are known beforehand.
        notes: lines for people, printed once.
        flags: `trainable` of all layers and variables, as the steps were traced for them.
        no_decay: see `build_optimizer`.
        averages_always: see `averages`.
    """

    unit = "samples"
    counts_units = several = False

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self.model, self.strategy = model, strategy
        self.distribution = tf.distribute.get_strategy()
        self.optimizers: list[keras.optimizers.Optimizer] = []
        self.rate: Callable[[], float] = lambda: 0.0
        self.known: list[str] = []
        self.notes: list[str] = []
        self.flags, self.no_decay, self.averages_always = read_flags(model), list[str](), False
        self.train_function: StepsFunction
        self.test_function: StepFunction
        self.test_last: Callable[[Any], Any]

    def trace(self) -> None:
        """Make the functions that train and test; each is traced when it is called, for the model as it is then."""
        raise NotImplementedError

    def applied(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Return the optimizers that a step calls, each with the variables that it is called for."""
        raise NotImplementedError

    def follow(self) -> bool:
        """Trace the steps again if other layers are trained than they were traced for; returns whether they were.

        Raises:
            ConfigError: an optimizer can't train them.
        """
        if (flags := read_flags(self.model)) == self.flags:
            return False
        self.flags = flags
        with self.strategy.scope():
            for optimizer, variables in self.applied():
                build_optimizer(optimizer, variables, self.no_decay)
                optimizer.apply.name += "."  # collectives of another graph
            self.trace()
        return True

    def trained(self) -> dict[str, Any]:
        """Return what is trainable now, and what each optimizer has a state for, of JSON types."""
        return {"flags": read_flags(self.model), "built": read_built(self.model, self.optimizers)}

    def restore_optimizers(self, built: Sequence[Sequence[int]]) -> None:
        """Create the optimizers' states that there were when `trained` was called."""
        variables = dict(enumerate(self.model.variables))
        with self.strategy.scope():
            for optimizer, numbers in zip(self.optimizers, built, strict=False):
                if chosen := [variables[n] for n in numbers if n in variables]:
                    build_optimizer(optimizer, chosen, self.no_decay)

    def swap_averages(self) -> bool:
        """Exchange the weights and their averages over time, bit for bit, so a second call undoes it; return whether there are any."""
        pairs = averages(self.optimizers, self.averages_always)
        local = self.strategy.local_values
        for one, other in ((a, b) for pair in pairs for a, b in zip(*map(local, pair), strict=True)):
            value = tf.identity(one)
            one.assign(other)
            other.assign(value)
        return bool(pairs)

    def begin(self, part: str) -> None:
        """An epoch, or an evaluation, begins: what was counted before is of another part."""

    def take(self) -> list[float]:
        """What this process has counted, to be summed over all processes."""
        raise NotImplementedError

    def peek(self) -> list[float]:
        """Return what `take` would, and keep counting."""
        return self.take()

    def report(self, part: str, sums: list[float]) -> dict[str, float]:
        """The metrics of a part, from what `take` gave, summed."""
        raise NotImplementedError

    def units(self, sums: list[float]) -> float | None:
        """How many of `unit` the sums hold; None: each is a row."""
        return None

    def weights(self) -> Saved:
        """Everything that the model is, by name: weights, moving statistics, states of seed generators."""
        return by_name(self.model.variables)

    def optimizer_state(self) -> Saved:
        """The same of the optimizers."""
        return by_name([v for optimizer in self.optimizers for v in optimizer.variables])

    def counted(self) -> Mapping[str, Any]:
        """What is counted over more than a log interval, over all ranks, by name; all processes must call it."""
        return {}

    def restore_counted(self, arrays: Mapping[str, Any]) -> None:
        """Count on from what `counted` gave."""

    def moving_statistics(self) -> list[keras.Variable]:
        """What each replica gathers from its own rows: means and variances of batch normalisation."""
        return float_statistics(self.model._flatten_layers())

    def function(self, step: Callable[[Any], Any]) -> StepFunction:
        """`step` on the next batch of each replica, as a graph. Keras' own would reduce its logs over all replicas."""
        distribution, pace = self.distribution, self.strategy.pace

        @tf.function(autograph=False)
        def run(iterator: Iterator[Any]) -> Any:
            batch = next(iterator)
            pace.fetched(batch)
            return distribution.run(step, args=(batch,))

        return run

    def repeated(self, step: Callable[[Any], Any]) -> StepsFunction:
        """`step` on as many next batches of each replica, one after the other, in one call of one graph.

        It returns nothing. With an output, the graph that TensorFlow's optimizer (Grappler) made of a large convolutional network
        did not repeat its bits on a CPU; without one, or without that optimizer, it does.
        """
        distribution, pace = self.distribution, self.strategy.pace

        @tf.function(autograph=False)
        def run(iterator: Iterator[Any], count: tf.Tensor) -> None:
            def one(number: tf.Tensor) -> list[tf.Tensor]:
                batch = next(iterator)
                pace.fetched(batch)
                distribution.run(step, args=(batch,))
                return [number + 1]

            tf.while_loop(lambda number: number < count, one, [tf.constant(0)], parallel_iterations=1)

        return run


def float_statistics(layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """Return what the layers themselves never train; `non_trainable_variables` has frozen weights too."""
    return [v for layer in layers for v in layer._non_trainable_variables if v.dtype == "float32"]


class TaskModule(Module):
    """Trains and tests a network: weighted loss, gradient accumulation, exact metrics; the task says what the loss is.

    The loss is the mean over rows of weight * the task's loss of the row, and what the network's layers add; averaged over
    ranks, that of all real rows.

    Args:
        network: takes what the task's `step` gives it; built, and compiled with an optimizer.
        strategy: averages the gradients over the ranks.
        accumulate: batches per optimizer step; above 1, each step takes a stack of them.
        compiled: XLA compiles the network with its loss and gradients; what ranks send each other it can't, nor read.
        watched: see `RunningSums`.
    """

    several = True

    def __init__(
        self,
        network: keras.Model,
        task: Any,
        strategy: Strategy,
        accumulate: int,
        compiled: bool = False,
        watched: bool = False,
    ) -> None:
        super().__init__(network, strategy)
        self.task, self.accumulate, self.compiled = task, accumulate, compiled
        self.unit, self.known = task.unit, task.names("train", "val", "test")
        self.counts_units = task.unit in task.sums
        self.sums = RunningSums(len(task.sums), watched)
        self.trace()

    def trace(self) -> None:
        """Make the functions that train and test."""
        if self.compiled:
            step = partial(type(self).gradients, self)
            self.gradients = tf.function(step, autograph=False, jit_compile=True)  # type: ignore[method-assign]
        self.train_function = self.repeated(self.train_step)
        self.test_function = self.function(self.test_step)

    def applied(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Return the network's optimizer with all that is trained."""
        return [(self.model.optimizer, self.model.trainable_variables)]

    def train_step(self, data: Batch) -> None:
        """One optimizer step; the optimizer averages the gradients."""
        gradients = self.gradients(data) if self.accumulate == 1 else self.accumulated(data)
        self.model.optimizer.apply(gradients, self.model.trainable_variables)

    def test_step(self, data: Batch) -> None:
        """Count one batch."""
        batch, weight = data
        _, sums = self.task.step(self.model, batch, weight, training=False)
        self.sums.add(tf.cast(sums, tf.float64))

    def gradients(self, data: Batch) -> list[tf.Tensor]:
        """The gradients of one batch's share of the loss."""
        batch, weight = data
        with tf.GradientTape() as tape:
            losses, sums = self.task.step(self.model, batch, weight, training=True)
            loss = tf.reduce_mean(weight * losses)
            loss = tf.add_n([loss, *(tf.cast(extra, loss.dtype) for extra in self.model.losses)])
            share = loss if self.accumulate == 1 else loss / self.accumulate
            loss = self.model.optimizer.scale_loss(share)
        self.sums.add(tf.cast(sums, tf.float64))
        return tape.gradient(loss, self.model.trainable_variables)

    def accumulated(self, data: Batch) -> list[tf.Tensor]:
        """The summed gradients of a stack of batches, one in memory at a time and nothing on the wire."""

        def fresh(number: tf.Tensor | int) -> list[tf.Tensor | None]:
            return self.gradients(tf.nest.map_structure(lambda stack: stack[number], data))

        def more(number: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            new = [g for g in fresh(number) if g is not None]
            return number + 1, [s + tf.convert_to_tensor(g) for s, g in zip(sums, new, strict=True)]

        first = fresh(0)
        used = [tf.convert_to_tensor(g) for g in first if g is not None]
        sums = iter(tf.while_loop(lambda n, _: n < self.accumulate, more, (tf.constant(1), used))[1])
        return [None if g is None else next(sums) for g in first]

    def take(self) -> list[float]:
        """The task's sums since the last call."""
        return self.sums.take()

    def peek(self) -> list[float]:
        """Return the same, and keep counting."""
        return self.sums.peek()

    def report(self, part: str, sums: list[float]) -> dict[str, float]:
        """The task's metrics."""
        metrics: dict[str, float] = self.task.report(part, sums)
        return metrics

    def units(self, sums: list[float]) -> float | None:
        """What the task counts."""
        return self.task.units(sums)  # type: ignore[no-any-return]
