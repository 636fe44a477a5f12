"""The native door: network, optimizer and batches of a task of this project."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.schema import Config
from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.tf.arrays import as_arrays
from train_anywhere.errors import ConfigError
from train_anywhere.features import Features
from train_anywhere.tasks import Task
from train_anywhere.training.keras.batches import TaskLoader
from train_anywhere.training.keras.dropin.gradients import average_inside, build_optimizer
from train_anywhere.training.keras.dropin.norm_layers import over_all_replicas
from train_anywhere.training.keras.module import TaskModule
from train_anywhere.training.keras.optim import make_optimizer, rate_of, unscheduled
from train_anywhere.training.keras.strategies.base import Strategy
from train_anywhere.training.native_network import build_network
from train_anywhere.training.plan import Plan, make_plan

POLICIES = {"32": "float32", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}
"""Keras' names of `trainer.precision`."""


def open_native(
    config: Config, strategy: Strategy, splits: Splits, task: Task
) -> tuple[TaskModule, TaskLoader, Plan]:
    """All variables are created, and the same on all ranks.

    Raises:
        ConfigError, DataError: network, optimizer, data and task do not fit together.
    """
    loader = TaskLoader(config, strategy, splits, task)
    train, val, test = (loader.batches(part) for part in ("train", "val", "test"))
    plan = make_plan(config, train, val, test, strategy.replicas)
    with strategy.scope(), dtype_policy(POLICIES[config.trainer.precision]):
        network = build_network(config, splits.facts)
        if not isinstance(network, keras.Model):
            raise ConfigError(
                f"model._target_={config.model.target['keras']} makes a {type(network).__name__}, and framework=keras trains a "
                "keras.Model."
            )
        if not network.built:
            call_once(network, task, loader.parts["train"], loader.prepare)
        if config.trainer.sync_batchnorm:
            over_all_replicas(network, strategy)
        network.compile(make_optimizer(config, plan, strategy.replicas), jit_compile=False)
        prepare_optimizer(network.optimizer, network.trainable_variables, config, strategy)
        module = TaskModule(
            network, task, strategy, plan.accumulate, config.trainer.compile, Features.of(config).counts
        )
    module.optimizers, module.no_decay = [network.optimizer], config.optimizer.no_decay
    module.rate = rate_of(network.optimizer, config, plan, strategy.replicas)
    module.notes = unscheduled(config)
    return module, loader, plan


def prepare_optimizer(
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    config: Config,
    strategy: Strategy,
) -> None:
    """Create the variables of this project's optimizer; from then on it averages gradients."""
    build_optimizer(optimizer, variables, config.optimizer.no_decay)
    average_inside(optimizer, strategy)


def call_once(network: keras.Model, task: Any, dataset: DataSet | None, prepare: Any) -> None:
    """Let a network create its variables, by the first row of the training data; nothing is counted."""
    assert dataset
    batch = as_arrays(dataset.read(np.array([0]), 0, False), "data")
    batch = as_arrays(prepare(batch), "task.prepare") if prepare else batch
    row = tf.nest.map_structure(tf.convert_to_tensor, batch)
    task.step(network, row, tf.ones(1), training=False)


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Layers made within the block compute in this precision; nothing else changes."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
