"""Create all variables of a drop-in model, its metrics and optimizers before a checkpoint is restored; no step is made for it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.dropin.gradients import AveragedApply, Saved, build_optimizer
from train_anywhere.training.keras.strategies.base import Strategy

DRAWS = {
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "Multinomial", "RandomShuffle",
    "RandomGamma", "RandomPoissonV2",
}  # fmt: skip
"""Operations of TensorFlow whose state is hidden."""

LATE = ("singleton tf.Variables", "variables on a non-first call", "cannot add new elements of state")
"""Parts of what TensorFlow and Keras say where a variable or a layer is created within a step."""


class Plain:
    """A bare `tf.Variable` under the names that one of Keras has."""

    def __init__(self, value: tf.Variable, number: int) -> None:
        self.value, self.name = value, value.name
        self.path, self.dtype, self.shape = f"other/{number}/{value.name}", value.dtype.name, value.shape

    def assign(self, value: Any) -> None:
        """Set it."""
        self.value.assign(tf.cast(value, self.value.dtype))

    def numpy(self) -> np.ndarray:
        """Its value."""
        return np.asarray(self.value)


def build(
    config: Config,
    model: keras.Model,
    strategy: Strategy,
    applies: Sequence[AveragedApply],
    train: Any,
    test: Any,
) -> tuple[Saved, list[str]]:
    """Trace the steps without running them, and create what they need. Within the strategy's scope.

    Args:
        applies: of all optimizers that the model has.
        train, test: types and shapes of the batches; test may be None: there is no evaluation.

    Returns:
        Variables that the steps use and that neither the model nor its metrics and optimizers know, by name; lines for people.

    Raises:
        ConfigError: there is no loss; or variables are created too late for the strategy.
    """
    own_step = type(model).train_step is not keras.Model.train_step
    with explaining(config, model):
        create(lambda data: forward(model, data, not own_step), train, quiet=own_step)
        if own_step:
            create(model.train_step, train, quiet=True)
        graphs = [look(model.train_step, train, applies)]
    for apply in applies:
        if apply.seen:
            build_optimizer(apply.optimizer, apply.seen, config.optimizer.no_decay)
    if test is not None:
        with explaining(config, model):
            graphs.append(look(model.test_step, test, applies))
    refuse_empty(config, graphs)
    notes = [DRAWN] if any(draws(graph) for graph in graphs) else []
    return ({} if tf.distribute.has_strategy() else others(model, applies, graphs)), notes


def forward(model: keras.Model, data: Any, compiled: bool) -> None:
    """What `fit` does to create the variables of a model, of its compiled losses and metrics."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    predicted = model(x)
    if compiled:
        model.compute_loss(x, y, predicted, weight)
        model.compute_metrics(x, y, predicted, weight)


def create(step: Callable[[Any], Any], spec: Any, quiet: bool) -> None:
    """Create the variables that a step needs, as far as it gets: gradients can't be taken of what does not exist yet.

    Args:
        quiet: an error says no more than that the step got no further.
    """
    try:
        with keras.StatelessScope():
            tf.function(step, autograph=False).get_concrete_function(spec)
    except Exception:
        if not quiet:
            raise


def look(step: Callable[[Any], Any], spec: Any, applies: Sequence[AveragedApply]) -> Any:
    """The graph of a step on a replica; for which variables it calls the optimizers is in `applies` then."""
    distribution = tf.distribute.get_strategy()
    for apply in applies:
        apply.looking = True
    try:
        run = tf.function(lambda data: distribution.run(step, args=(data,)) and None, autograph=False)
        return run.get_concrete_function(spec).graph
    finally:
        for apply in applies:
            apply.looking = False


def refuse_empty(config: Config, graphs: Sequence[Any]) -> None:
    """Raise ConfigError for a variable that only the first run of a step would give a value: a resumed run's has none to restore."""
    if any(not bool(v.is_initialized()) for graph in graphs for v in graph.variables):
        raise ConfigError(created_late(config.task.target["keras"]))


def created_late(target: str) -> str:
    """The sentence for it."""
    return f"task._target_={target} creates layers or variables in its train_step; create them in the constructor."


@contextmanager
def explaining(config: Config, model: keras.Model) -> Iterator[None]:
    """What a user can do about the errors that are to be expected."""
    target = config.task.target["keras"]
    try:
        yield
    except Exception as error:
        untested = "No loss to compute" in str(error) or isinstance(error, NotImplementedError)
        if untested and type(model).train_step is not keras.Model.train_step:
            raise ConfigError(
                f"task._target_={target} has a train_step, but neither a test_step nor a compiled loss, so nothing can be evaluated; give "
                "it a test_step, or use trainer.limit_val_batches=0 trainer.limit_test_batches=0."
            ) from error
        if "No loss to compute" in str(error):
            raise ConfigError(
                f"task._target_={target} has neither a loss nor a train_step: compile it there, compile(optimizer=None, loss=...) for the "
                "optimizer of this run, or give it a train_step."
            ) from error
        if any(part in str(error) for part in LATE):
            raise ConfigError(created_late(target)) from error
        raise


DRAWN = (
    "the steps draw random numbers with tf.random, whose state can't be saved: a resumed run draws others; use keras.random with a "
    "keras.random.SeedGenerator."
)


def draws(graph: Any) -> bool:
    """Whether a step draws random numbers that a resumed run would not repeat."""
    written = graph.as_graph_def()
    nodes = [*written.node, *(node for called in written.library.function for node in called.node_def)]
    return any(node.op in DRAWS for node in nodes)


def others(model: keras.Model, applies: Sequence[AveragedApply], graphs: Sequence[Any]) -> Saved:
    """Bare variables of TensorFlow, and the seed of `keras.random` without a generator: they are saved too."""
    known = [*model.variables, *model.metrics_variables, *(v for m in model.metrics for v in m.variables)]
    known += [v for apply in applies for v in apply.optimizer.variables]
    seen = {v.value.ref() for v in known}
    found: dict[Any, tf.Variable] = {}
    for graph in graphs:
        found |= {v.ref(): v for v in graph.variables if v.ref() not in seen}
    # in the order of their names: that in which a graph is traced is another one where the seed exists already
    plain = [Plain(v, n) for n, v in enumerate(sorted(found.values(), key=lambda v: v.name))]
    return {v.path: v for v in plain}
