"""Open the `keras.Model` of a task, which works with `fit`, unchanged, and create its variables without running a step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.config.checks.targets import task_has_network
from train_anywhere.config.instantiate import make_kind
from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import Splits, check_labels
from train_anywhere.data.tf.streams import Stream
from train_anywhere.errors import ConfigError
from train_anywhere.tasks import OLD_TASK, Task
from train_anywhere.training.early_stopping import monitored_value
from train_anywhere.training.keras.batches import Loader
from train_anywhere.training.keras.checkpoint import disable_graph_optimizer
from train_anywhere.training.keras.dropin.gradients import (
    AveragingApply,
    NamedVariables,
    add_adapters,
    build_optimizer,
    find_layers,
    find_parts,
)
from train_anywhere.training.keras.dropin.old_task import OldTask
from train_anywhere.training.keras.module import Module, flatten_logs, number_names
from train_anywhere.training.keras.optim import make_optimizer
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.plan import (
    Plan,
    batches_per_step,
    build_network,
    count_parts,
    make_plan,
    refuse_unmatched,
)

POLICIES = {"32": "float32", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}
"""Keras' dtype policy for each `trainer.precision`."""

NOT_COMPILED = "trainer.compile=true compiles the network of a task; this model has its own steps, and trains without XLA."


def open_model(config: Config, strategy: Strategy, splits: Splits) -> tuple[Module, Loader, Plan]:
    """Return the module, batches and plan of `task._target_`. Raises ConfigError, DataError if they do not fit together.

    A target with an argument `network` gets the network of `model=`, and the optimizer of `optimizer=` with its schedule.
    """
    target, policy = config.task.target["keras"], POLICIES[config.trainer.precision]
    whole = task_has_network(config.task, "keras")
    with strategy.scope(), dtype_policy(policy):
        model = network = make_model(config) if whole else make_network(config, splits)
    if whole:
        refuse_accumulation(config)
    disable_graph_optimizer()
    loader = Loader(config, strategy, splits)
    train, val, test = (loader.count_batches(split) for split in ("train", "val", "test"))
    plan = make_plan(config, train, val, test, strategy.replicas)
    with strategy.scope(), dtype_policy(policy):
        ours, base = None, add_adapters(network, config, whole)
        if not (whole and model.compiled and model.optimizer is not None):
            ours = make_optimizer(config, plan, strategy.replicas)
        if not whole:
            model = make_model(config, network=network, optimizer=ours)
            loader.splits = model.prepare(loader.splits) if isinstance(model, OldTask) else loader.splits
        elif ours is not None:
            compile_model(model, ours, target)
        spec = loader.spec("train")
        if isinstance(loader.splits["train"], Stream):  # data.batch_size has no effect on it
            plan.batch_per_rank = next((s.shape[0] for s in tf.nest.flatten(spec) if s.shape.rank), None) or 0
        optimizers = find_parts(model, keras.optimizers.Optimizer)
        refuse_sum_losses(model, optimizers, strategy)
        applies = [AveragingApply(o, strategy, n) for n, o in enumerate(optimizers)]
        evaluated = "val" if plan.val_batches else "test" if plan.test_batches else None
        other = loader.spec(evaluated) if evaluated else None
        extra, notes, names = build_variables(model, target, config.optimizer.no_decay, applies, spec, other)
        if config.trainer.sync_batchnorm and strategy.replicas > 1:
            # Keras sums the rows, their squares and their number over the replicas, also in the backward pass
            for layer in find_parts(model, keras.layers.BatchNormalization):
                layer.synchronized = True
        if ours is not None:
            refuse_unmatched(config.optimizer.groups, [v.path for v in model.weights])
        used = [apply.optimizer for apply in applies if apply.variables]
        rate_of, others = check_optimizers(config, strategy.replicas, ours, used)
        form = (model, None if whole else network, strategy, extra, applies, base, spec)
        module = Module(*form, plan.accumulate, config.trainer.compile and not whole, rate_of)
    module.notes += [*loader.notes, *notes, *others, *[NOT_COMPILED] * (config.trainer.compile and whole)]
    module.notes += [OLD_TASK.format(target)] * isinstance(model, OldTask)
    if not config.callbacks:
        known = [f"{s}/{n}" for s, known in zip(("train", "val"), names, strict=False) for n in known]
        check_monitors(config, plan, known)
    return module, loader, plan


def refuse_accumulation(config: Config) -> None:
    """Raise ConfigError if steps have several batches: the step of a whole model is that of one."""
    if batches_per_step(config) > 1:
        name = "micro_batch" if count_parts(config) > 1 else "accumulate_grad_batches"
        target = config.task.target["keras"]
        raise ConfigError(
            f"trainer.{name}={getattr(config.trainer, name)}, but task._target_={target} makes an optimizer step for each batch; use a "
            "larger data.batch_size, or gradient_accumulation_steps of an optimizer that the model brings."
        )


def make_model(config: Config, **supplied: Any) -> keras.Model:
    """Return the model of `task._target_`. Raises ConfigError for another object."""
    kinds = keras.Model, Task
    model = make_kind(
        config.task, "task", "keras", kinds, "keras.Model, as framework=keras needs", **supplied
    )
    return OldTask(model, **supplied) if isinstance(model, Task) else model


def make_network(config: Config, splits: Splits) -> keras.Model:
    """Return the network of `model=` for a task. Raises ConfigError for another object, DataError if the first rows do not suit it."""
    check_labels(splits)
    network = build_network(config, splits.facts)
    if not isinstance(network, keras.Model):
        raise ConfigError(
            f"model._target_={config.model.target['keras']} makes a {type(network).__name__}, and framework=keras trains a "
            "keras.Model."
        )
    return network


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Set the precision of layers that are created within the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def check_monitors(config: Config, plan: Plan, names: Sequence[str]) -> None:
    """Raise ConfigError if a monitor is not among the names of what the steps return."""
    known, stopping = dict.fromkeys(names, 0.0), config.trainer.early_stopping
    for key, monitor in (
        ("checkpoint.monitor", config.checkpoint.monitor),
        ("trainer.early_stopping.monitor", stopping.monitor if stopping.patience is not None else None),
    ):
        measured = plan.val_batches or (monitor or "").startswith("train/")
        if monitor and measured and any(name.startswith(monitor.partition("/")[0]) for name in names):
            monitored_value(known, monitor, key)


def refuse_sum_losses(model: keras.Model, optimizers: Sequence[Any], strategy: Strategy) -> None:
    """Raise ConfigError for a loss that the mean over the replicas would change."""
    losses = tf.nest.flatten(model.loss) if model.compiled and model.loss else []
    used = {str(getattr(loss, "reduction", None)) for loss in losses}
    found = used & {"sum", "mean_with_sample_weight"}
    if strategy.replicas > 1 and found:
        raise ConfigError(
            f"the model is compiled with a loss of reduction='{min(found)}', and the gradients of {strategy.replicas} ranks or devices are "
            "averaged, which would change the loss; use reduction='sum_over_batch_size', or trainer.devices=1."
        )
    steps = next((n for o in optimizers if (n := getattr(o, "gradient_accumulation_steps", None))), None)
    if steps and strategy.replicas > 1 and tf.distribute.has_strategy():
        raise ConfigError(
            f"an optimizer has gradient_accumulation_steps={steps}, which Keras can't use with tf.distribute on {strategy.replicas} "
            "devices; use a larger data.batch_size, strategy=horovod, or trainer.devices=1."
        )


def compile_model(model: keras.Model, optimizer: keras.optimizers.Optimizer, target: str) -> None:
    """Compile the model with this run's optimizer. Raises ConfigError if it can't be."""
    if model.compiled:
        model.optimizer = optimizer
        return
    try:
        model.compile(optimizer=optimizer, jit_compile=False)
    except TypeError as error:
        raise ConfigError(
            f"task._target_={target} has its own compile(), which needs more arguments than optimizer ({error}); call it in the "
            "constructor, which has the arguments."
        ) from error


def check_optimizers(
    config: Config, replicas: int, ours: keras.optimizers.Optimizer | None, used: Sequence[Any]
) -> tuple[keras.optimizers.Optimizer | None, list[str]]:
    """Return the optimizer whose learning rate is reported, and notes. Raises ConfigError for useless keys."""
    target = config.task.target["keras"]
    if not used and replicas > 1:
        raise ConfigError(
            f"the train_step of task._target_={target} calls no optimizer, so the gradients of {replicas} ranks or devices "
            "would not be averaged; use optimizer.apply in it, or trainer.devices=1."
        )
    if ours is not None and any(o is ours for o in used):
        own = getattr(config.optimizer, "arguments", {}).get("learning_rate")
        line = (
            f"optimizer.learning_rate={own} replaces optimizer.lr, optimizer.scale_lr and schedule={config.schedule.name}, which have no "
            "effect; use optimizer.lr to have a schedule."
        )
        return ours, [] if own is None else [line]
    if config.trainer.gradient_clip_val is not None:
        raise ConfigError(
            f"trainer.gradient_clip_val={config.trainer.gradient_clip_val} would have no effect: task._target_={target} brings its own "
            "optimizer; give that one global_clipnorm."
        )
    line = "the model brings its own optimizer: optimizer and schedule have no effect."
    return (used[0], [line]) if used else (None, [])


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
        values = [(v, tf.convert_to_tensor(v.value)) for v in model.variables]
        # gradients of missing variables can't be computed, and the step is traced again
        with suppress(Exception), keras.StatelessScope(values):
            tf.function(step, autograph=False).get_concrete_function(train)
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
    defs = [graph.as_graph_def() for graph in graphs]
    nodes = [n for d in defs for n in (*d.node, *(m for f in d.library.function for m in f.node_def))]
    notes = [TF_RANDOM_NOTE] if any(node.op in TF_RANDOM_OPERATIONS for node in nodes) else []
    if not own_step and any(apply.strategy.replicas > 1 for apply in applies):
        masks = (
            isinstance(o, keras.layers.Masking) or getattr(o, "mask_zero", False) for o in find_layers(model)
        )
        notes += [MASK_NOTE] if any(masks) else []
    if tf.distribute.has_strategy():
        return {}, notes, names
    known = [*model.variables, *model.metrics_variables, *(v for m in model.metrics for v in m.variables)]
    known += [v for apply in applies for v in apply.optimizer.variables]
    seen = {v.value.ref() for v in known}
    found = {v.ref(): v for graph in graphs for v in graph.variables if v.ref() not in seen}
    # sorted by name: the order of tracing depends on whether the state of keras.random exists already
    plain = [UntrackedVariable(v, n) for n, v in enumerate(sorted(found.values(), key=lambda v: v.name))]
    return {v.path: v for v in plain}, notes, names


def use_compiled(model: keras.Model, data: Any) -> None:
    """Call the model, and the compiled losses and metrics, which create their variables; also those that an own step does not use."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    predicted = model(x)
    with suppress(ValueError):  # no compiled loss
        model.compute_loss(x, y, predicted, weight)
    model.compute_metrics(x, y, predicted, weight)


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
