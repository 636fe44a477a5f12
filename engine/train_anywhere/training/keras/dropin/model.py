"""Open the `keras.Model` of a task, which works with `fit`, and train it unchanged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    add_adapters,
    average_in_apply,
    find_parts,
    synchronize_batch_norms,
)
from train_anywhere.training.keras.dropin.old_task import OldTask
from train_anywhere.training.keras.dropin.variables import build_variables
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.optim import ignored_rate_notes, make_optimizer
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
    """Return the module, batches and plan of `task._target_`.

    A target with an argument `network` gets the network of `model=`, and the optimizer of `optimizer=` with its schedule.

    Raises:
        ConfigError, DataError: model, data and configuration do not fit together.
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
        applies = [average_in_apply(o, strategy, n) for n, o in enumerate(optimizers)]
        evaluated = "val" if plan.val_batches else "test" if plan.test_batches else None
        other = loader.spec(evaluated) if evaluated else None
        extra, notes, names = build_variables(model, target, config.optimizer.no_decay, applies, spec, other)
        if config.trainer.sync_batchnorm:
            synchronize_batch_norms(model, strategy)
        if ours is not None:
            refuse_unmatched(config.optimizer.groups, [v.path for v in model.weights])
        used = [apply.optimizer for apply in applies if apply.variables]
        rate_of, others = check_optimizers(config, strategy.replicas, ours, used)
        form = (model, None if whole else network, splits.facts, strategy, extra, applies, base, spec)
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
    """Return the network of `model=` for a task that takes one.

    Raises:
        ConfigError: it is another object.
        DataError: the first rows do not suit it.
    """
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
        return ours, ignored_rate_notes(config.optimizer, config.schedule)
    if config.trainer.gradient_clip_val is not None:
        raise ConfigError(
            f"trainer.gradient_clip_val={config.trainer.gradient_clip_val} would have no effect: task._target_={target} brings its own "
            "optimizer; give that one global_clipnorm."
        )
    line = "the model brings its own optimizer: optimizer and schedule have no effect."
    return (used[0], [line]) if used else (None, [])
