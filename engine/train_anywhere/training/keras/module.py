"""The training step and the test step of a model, and what they report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.dropin.gradients import (
    AveragingApply,
    Base,
    NamedVariables,
    build_optimizer,
    find_batch_norms,
    name_variables,
    read_flags,
    weight_averages,
)
from train_anywhere.training.keras.dropin.metric_sums import Metrics, StepLogs
from train_anywhere.training.keras.dropin.variables import trace_step
from train_anywhere.training.keras.optim import make_rate_reader
from train_anywhere.training.keras.strategies.base import Strategy

StepFunction = Callable[[Iterator[Any]], Any]
"""A function that trains or tests on the next batch."""


class Module:
    """A model with its own steps, or with those of Keras for its compiled loss, on a strategy.

    As in Keras, metrics cover the epoch so far, and have the names that the steps return.

    Args:
        model: the model that callbacks see. Its variables and those of its metrics and optimizers exist.
        network: the network of `model=`; None if the model brings its own.
        facts: facts about the data set, such as the number of classes.
        extra: variables that the steps use and the model does not track.
        spec: types and shapes of a training batch of one replica.
        base: the weights that `model.lora` freezes; None without adapters.
        accumulate: batches per optimizer step; above 1, each step gets a stack of them.
        jit_compile: whether XLA compiles the step without the optimizer; it can't compile collectives and reading data.

    Attributes:
        learning_rate: returns the learning rate of the last optimizer step.
        notes: lines for the user, printed once.
        flags: `trainable` of all layers and variables when the steps were traced.
    """

    def __init__(
        self,
        model: keras.Model,
        network: keras.Model | None,
        facts: Mapping[str, Any],
        strategy: Strategy,
        extra: NamedVariables,
        applies: Sequence[AveragingApply],
        spec: Any,
        base: Base | None = None,
        no_decay: Sequence[str] = (),
        accumulate: int = 1,
        jit_compile: bool = False,
    ) -> None:
        self.model, self.network, self.facts, self.strategy, self.base = model, network, facts, strategy, base
        self.extra, self.applies, self.spec, self.no_decay = extra, applies, spec, no_decay
        self.accumulate, self.jit_compile = accumulate, jit_compile
        self.optimizers = [apply.optimizer for apply in applies]
        self.distribution = tf.distribute.get_strategy()
        self.learning_rate: Callable[[], float] = lambda: 0.0
        self.notes: list[str] = []
        self.flags, self._averages_always = read_flags(model), False
        self._weights: NamedVariables | None = None
        self.metrics = Metrics(model, strategy)
        self.step_logs = StepLogs(self.metrics)
        self.trace()

    def trace(self) -> None:
        """Create the functions that train and test, which are traced at their first calls."""
        model = self.model
        eager, keep = bool(model.run_eagerly) and self.strategy.replicas == 1, self.step_logs.keep
        train, test = self.step_logs.wrap(self._train_step()), self.step_logs.wrap(model.test_step)
        self.train_graph: StepFunction = (
            (lambda i: train(next(i))) if eager else self.make_step_function(train)
        )
        run_test = (lambda i: test(next(i))) if eager else self.make_step_function(test)
        last = tf.function(lambda data: self.distribution.run(test, args=(data,)), autograph=False)
        self.train_function: StepFunction = lambda iterator: keep(self.train_graph(iterator))
        self.test_function: StepFunction = lambda iterator: keep(run_test(iterator))
        self.test_last: Callable[[Any], Any] = lambda data: keep((test if eager else last)(data))

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
        compute: Callable[[Any], Any] = lambda data: apply.record(self.model.train_step, data)  # noqa: E731
        if self.jit_compile:
            compute = tf.function(compute, autograph=False, jit_compile=True)

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

    def read_rate_of(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Report the learning rate of this optimizer."""
        self.learning_rate = make_rate_reader(optimizer)

    def average_always(self) -> None:
        """Include averages that an optimizer itself copies to the weights in `swap_averages`."""
        self._averages_always = True

    def keep_weights(self, weights: NamedVariables) -> None:
        """Use these variables as `weights` from now on, also if layers are added or removed."""
        self._weights = weights

    def optimized_variables(self) -> list[tuple[keras.optimizers.Optimizer, list[keras.Variable]]]:
        """Return the optimizers and variables of a step, which is traced but not run."""
        for apply in self.applies:
            apply.variables = []
        trace_step(self.model.train_step, self.spec, self.applies)
        return [(apply.optimizer, apply.variables) for apply in self.applies if apply.variables]

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
        """Reset the model's metrics."""
        self.model.reset_metrics()
        self.step_logs.reset()

    def take(self) -> list[float]:
        """Return the states of this process's metrics, then the values of the last step."""
        return [*self.metrics.take(), *self.step_logs.take()]

    def report(self, split: str, sums: list[float]) -> dict[str, float]:
        """Return what Keras reports: the values of the last step, or its metrics if it returns all.

        Several replicas also report each metric that is returned under its own name from the states of all.
        """
        end = len(sums) - 2 * len(self.step_logs.names)
        values, results = self.step_logs.means(sums[end:]), self.metrics.results(sums[:end])
        if values.keys() == results.keys() or not values:
            values = results
        elif self.step_logs.several:
            values |= {name: v for name, v in results.items() if name in self.step_logs.last[2]}
        return {f"{split}/{name}": value for name, value in values.items()}

    def report_batch(self, split: str) -> dict[str, float]:
        """Return what the last step has returned, over the replicas of this process."""
        values = self.step_logs.means(self.step_logs.take())
        return {f"{split}/{name}": value for name, value in values.items()}

    def weights(self) -> NamedVariables:
        """Return the variables of a checkpoint by name. Raises ConfigError if the base is trained."""
        named = name_variables(self.model.variables) if self._weights is None else self._weights
        if self.base is not None:
            self.base.refuse_trained()
            named = {name: variable for name, variable in named.items() if name not in self.base.variables}
        return {**named, **self.extra}

    def optimizer_state(self) -> NamedVariables:
        """Return all variables of the optimizers by name."""
        return name_variables([v for optimizer in self.optimizers for v in optimizer.variables])

    def metric_state(self) -> Mapping[str, Any]:
        """Return the states of the metrics over all ranks."""
        arrays = self.metrics.arrays(self.strategy.sum(self.metrics.take()))
        return {f"state/{n}": array for n, array in enumerate(arrays)}

    def restore_metric_state(self, arrays: Mapping[str, Any]) -> None:
        """Continue from these states on the rank that reads the checkpoint. Others start at zero."""
        self.metrics.restore([array for key, array in arrays.items() if key.startswith("state/")])

    def continue_metrics(self, arrays: Mapping[str, Any]) -> None:
        """Continue from `metric_state` after a validation. All processes call this."""
        self.reset_metrics()
        first = self.strategy.rank == 0
        self.restore_metric_state(arrays if first else {name: 0 * array for name, array in arrays.items()})

    def moving_statistics(self) -> list[keras.Variable]:
        """Return the float32 ones of batch normalization. Other variables must be equal on all ranks."""
        layers = find_batch_norms(self.model)
        return [v for layer in layers for v in layer._non_trainable_variables if v.dtype == "float32"]

    def make_step_function(self, step: Callable[[Any], Any]) -> StepFunction:
        """Return a graph that runs `step` on the next batch of each replica."""
        distribution, pace = self.distribution, self.strategy.pace

        @tf.function(autograph=False)
        def run(iterator: Iterator[Any]) -> Any:
            batch = next(iterator)
            pace.mark_batch(batch)
            return distribution.run(step, args=(batch,))

        return run
