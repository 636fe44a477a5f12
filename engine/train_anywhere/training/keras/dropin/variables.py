"""Create all variables of a user's model without running a step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.dropin.gradients import (
    AveragingApply,
    NamedVariables,
    build_optimizer,
    find_layers,
)
from train_anywhere.training.keras.dropin.metric_sums import flatten_logs, number_names

TF_RANDOM_OPERATIONS = {
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "Multinomial", "RandomShuffle",
    "RandomGamma", "RandomPoissonV2",
}  # fmt: skip
"""Operations of TensorFlow with random states that can't be saved."""

LATE_CREATION_ERRORS = (
    "singleton tf.Variables",
    "variables on a non-first call",
    "cannot add new elements of state",
)
"""Parts of the error messages of TensorFlow and Keras if a variable or a layer is created within a step."""

NO_LOSS_ERROR, NO_CALL_ERROR = "No loss to compute", "does not have a `call()`"
"""Parts of the error messages of Keras if a step needs a compiled loss, or calls the model itself, and the model has none."""


LATE = "creates layers or variables in its train_step; create them in the constructor."

TF_RANDOM_NOTE = (
    "the steps use tf.random, whose state can't be saved: a resumed run draws other random numbers; use keras.random with a "
    "keras.random.SeedGenerator."
)

MASK_NOTE = (
    "the loss is a mean over the values that a mask keeps, and each rank or device divides by its own number of them: the training "
    "depends on the number of ranks; use trainer.devices=1 for that of a single one."
)


class UntrackedVariable:
    """A plain `tf.Variable` with the interface of a Keras variable."""

    def __init__(self, value: tf.Variable, number: int) -> None:
        self.value, self.name, self.shape = value, value.name, value.shape
        self.path, self.dtype = f"other/{number}/{value.name}", value.dtype.name

    def assign(self, value: Any) -> None:
        """Assign a value, converted to the variable's type."""
        self.value.assign(tf.cast(value, self.value.dtype))


def build_variables(
    model: keras.Model,
    target: str,
    no_decay: Sequence[str],
    applies: Sequence[AveragingApply],
    train: Any,
    test: Any,
) -> tuple[NamedVariables, list[str], list[list[str]]]:
    """Trace the steps without running them, and create the variables that they need.

    `train` and `test` are types and shapes of batches; `target` is the name of the model in messages. Returns variables by name that the
    steps use and Keras does not track, notes for the user, and the names of what each step returns. Raises ConfigError without a loss.
    """
    own_step = type(model).train_step is not keras.Model.train_step
    # first the layers by themselves: a regularizer in the loss needs their values
    alone = lambda data: model(keras.utils.unpack_x_y_sample_weight(data)[0])  # noqa: E731
    for step in (alone, partial(use_compiled, model), *([model.train_step] if own_step else [])):
        create_variables(model, step, train)
    with explain_errors(model, target):
        graphs, names = [trace_step(model.train_step, train, applies, trained := list[str]())], [trained]
    for apply in applies:
        if apply.variables:
            build_optimizer(apply.optimizer, apply.variables, no_decay)
    if test is not None:
        with explain_errors(model, target, evaluates=True):
            graphs.append(trace_step(model.test_step, test, applies, tested := list[str]()))
            names.append(tested)
    if any(not bool(v.is_initialized()) for graph in graphs for v in graph.variables):
        # the first run of a step would initialize it, but a resumed run has to restore it before
        raise ConfigError(f"task._target_={target} {LATE}")
    written = [graph.as_graph_def() for graph in graphs]
    nodes = [
        n for one in written for n in (*one.node, *(m for f in one.library.function for m in f.node_def))
    ]
    notes = [TF_RANDOM_NOTE] if any(node.op in TF_RANDOM_OPERATIONS for node in nodes) else []
    if not own_step and any(apply.strategy.replicas > 1 for apply in applies):
        masks = (
            isinstance(o, keras.layers.Masking) or getattr(o, "mask_zero", False) for o in find_layers(model)
        )
        notes += [MASK_NOTE] if any(masks) else []
    extra = {} if tf.distribute.has_strategy() else find_untracked_variables(model, applies, graphs)
    return extra, notes, names


def use_compiled(model: keras.Model, data: Any) -> None:
    """Call the model, and the compiled losses and metrics, which create their variables; also those that an own step does not use."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    predicted = model(x)
    with suppress(ValueError):  # no compiled loss
        model.compute_loss(x, y, predicted, weight)
    model.compute_metrics(x, y, predicted, weight)


def create_variables(model: keras.Model, step: Callable[[Any], Any], spec: Any) -> None:
    """Trace a step to create its variables. A regularizer needs the values of others.

    Ignore an error: gradients of missing variables can't be computed, and the step is traced again.
    """
    values = [(v, tf.convert_to_tensor(v.value)) for v in model.variables]
    with suppress(Exception), keras.StatelessScope(values):
        tf.function(step, autograph=False).get_concrete_function(spec)


def trace_step(
    step: Callable[[Any], Any], spec: Any, applies: Sequence[AveragingApply], names: list[str]
) -> Any:
    """Return a step's graph; record variables in `applies`, and what it returns in `names`."""

    def on_replica(data: Any) -> None:
        logs = step(data)
        values = flatten_logs(logs).items() if isinstance(logs, dict) else ()
        names[:] = [name for key, value in values for name in number_names(key, value)]

    run = partial(tf.distribute.get_strategy().run, on_replica)
    with ExitStack() as stack:
        for apply in applies:
            stack.enter_context(apply.capture())
        return tf.function(lambda data: run((data,)), autograph=False).get_concrete_function(spec).graph


@contextmanager
def explain_errors(model: keras.Model, target: str, evaluates: bool = False) -> Iterator[None]:
    """Raise ConfigError with the remedy instead of known errors of Keras and TensorFlow."""
    try:
        yield
    except Exception as error:
        no_loss, kind = NO_LOSS_ERROR in str(error), type(model)
        own_step = kind.train_step is not keras.Model.train_step
        own_test = kind.test_step is not keras.Model.test_step
        if evaluates and own_step and not own_test and (no_loss or NO_CALL_ERROR in str(error)):
            why = (
                "has a train_step, but neither a test_step nor a compiled loss, so nothing can be evaluated; give it a test_step, or use "
                "trainer.limit_val_batches=0 trainer.limit_test_batches=0."
            )
        elif no_loss and (own_test if evaluates else own_step):
            why = (
                f"has a {'test_step' if evaluates else 'train_step'} that calls compute_loss, but no compiled loss: compute the loss in "
                "that step, or call compile(loss=...)."
            )
        elif no_loss:
            why = (
                "has neither a loss nor a train_step: call compile(optimizer=None, loss=...) there to use the optimizer of this run, or "
                "give it a train_step."
            )
        elif any(part in str(error) for part in LATE_CREATION_ERRORS):
            why = LATE
        else:
            raise
        raise ConfigError(f"task._target_={target} {why}") from error


def find_untracked_variables(
    model: keras.Model, applies: Sequence[AveragingApply], graphs: Sequence[Any]
) -> NamedVariables:
    """Return variables that Keras does not track by name, such as the state of `keras.random`."""
    known = [*model.variables, *model.metrics_variables, *(v for m in model.metrics for v in m.variables)]
    known += [v for apply in applies for v in apply.optimizer.variables]
    seen = {v.value.ref() for v in known}
    found = {v.ref(): v for graph in graphs for v in graph.variables if v.ref() not in seen}
    # sorted by name: the order of tracing depends on whether the state of keras.random exists already
    plain = [UntrackedVariable(v, n) for n, v in enumerate(sorted(found.values(), key=lambda v: v.name))]
    return {v.path: v for v in plain}
