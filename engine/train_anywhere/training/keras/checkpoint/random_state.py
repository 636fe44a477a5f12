"""Random numbers: one seed for the run, different dropout on each device. Their states are variables, so checkpoints hold them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from train_anywhere.training.keras.module import Module


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and TensorFlow.

    tf.config.experimental.enable_op_determinism() stays off: results on a CPU are reproducible bit for bit without it, and it would
    serialize the threads that read data. Enable it for exact reproducibility on GPUs.
    """
    keras.utils.set_random_seed(seed)


def disable_graph_optimizer() -> None:
    """Turn off TensorFlow's graph optimizer (Grappler) on CPUs, so that steps that return logs are reproducible bit for bit.

    Measured with TensorFlow 2.21 and a ResNet-50 in batches of 8, with two threads for operations: with the optimizer, runs ended with
    different weights, also under enable_op_determinism(); without it, all were equal and a step took as long. On GPUs it stays on.
    """
    if not tf.config.get_visible_devices("GPU"):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@contextmanager
def keep_random_state(module: Module) -> Iterator[None]:
    """Restore the random states of Python, numpy, TensorFlow and the model after the block."""
    states = [v for v in module.model.variables if v.name == "seed_generator_state"]
    copies = [copy for state in states for copy in module.strategy.local_values(state)]
    before = [copy.numpy() for copy in copies]
    seeds = getattr(context.context(), "_rng", None)  # of operations without a seed
    python, own, drawn = random.getstate(), np.random.get_state(), seeds.getstate() if seeds else None
    yield
    for copy, value in zip(copies, before, strict=True):
        copy.assign(value)
    random.setstate(python)
    np.random.set_state(own)
    if seeds:
        seeds.setstate(drawn)


def split_seeds(module: Module) -> None:
    """Give each device different dropout seeds, after all received those of rank 0."""
    strategy = module.strategy
    for seed in (v for v in module.model.variables if v.name == "seed_generator_state"):
        local = strategy.local_values(seed)
        for number, value in enumerate(local):
            value.assign_add(tf.constant([strategy.rank * len(local) + number, 0], value.dtype))
