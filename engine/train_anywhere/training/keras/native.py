"""Create the network, optimizer and batches of a native task."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.first_rows import check_first_rows
from train_anywhere.data.tf.arrays import to_arrays
from train_anywhere.errors import ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.keras.batches import TaskLoader
from train_anywhere.training.keras.dropin.gradients import (
    add_adapters,
    average_in_apply,
    build_optimizer,
    synchronize_batch_norms,
)
from train_anywhere.training.keras.module import TaskModule
from train_anywhere.training.keras.optim import ignored_rate_notes, make_optimizer
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.plan import Plan, build_network, make_plan, refuse_unmatched

POLICIES = {"32": "float32", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}
"""Keras' dtype policy for each `trainer.precision`."""


def open_native(
    config: Config, strategy: Strategy, splits: Splits, task: Task
) -> tuple[TaskModule, TaskLoader, Plan]:
    """Return the module, batches and plan of a native task.

    Raises:
        ConfigError, DataError: network, optimizer, data and task do not fit together.
    """
    check_first_rows(task, splits)
    loader = TaskLoader(config, strategy, splits, task)
    train, val, test = (loader.count_batches(split) for split in ("train", "val", "test"))
    plan = make_plan(config, train, val, test, strategy.replicas)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        network = build_network(config, splits.facts)
        if not isinstance(network, keras.Model):
            raise ConfigError(
                f"model._target_={config.model.target['keras']} makes a {type(network).__name__}, and framework=keras trains a "
                "keras.Model."
            )
        if not network.built:
            call_once(network, task, loader.splits["train"], loader.prepare)
        if config.trainer.sync_batchnorm:
            synchronize_batch_norms(network, strategy)
        base = add_adapters(network, config, whole=False)
        refuse_unmatched(config.optimizer.groups, [v.path for v in network.weights])
        network.compile(make_optimizer(config, plan, strategy.replicas), jit_compile=False)
        build_optimizer(network.optimizer, network.trainable_variables, config.optimizer.no_decay)
        average_in_apply(network.optimizer, strategy)
        options = {"base": base, "optimizers": [network.optimizer], "no_decay": config.optimizer.no_decay}
        module = TaskModule(network, task, strategy, plan.accumulate, config.trainer.compile, **options)
    module.read_rate_of(network.optimizer)
    module.notes.extend(ignored_rate_notes(config.optimizer, config.schedule))
    return module, loader, plan


def call_once(network: keras.Model, task: Any, dataset: DataSet | None, prepare: Any) -> None:
    """Call a network with the first row of the training data, so that it creates its variables."""
    assert dataset
    batch = to_arrays(dataset.read(np.array([0]), 0, False), "data")
    batch = to_arrays(prepare(batch), "task.prepare") if prepare else batch
    row = tf.nest.map_structure(tf.convert_to_tensor, batch)
    task.step(network, row, tf.ones(1), training=False)


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Set the precision of layers that are created within the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
