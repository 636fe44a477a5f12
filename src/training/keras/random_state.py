"""Random numbers: one seed for the run, different dropout on each device. Their states are variables, saved as such."""

import keras
import tensorflow as tf

from src.training.keras.module import Module


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and TensorFlow.

    tf.config.experimental.enable_op_determinism() stays off: a CPU repeats its bits without it, and with it the
    threads that read data would take turns. It is what to add on GPUs if every bit counts.
    """
    keras.utils.set_random_seed(seed)


def part_seeds(module: Module) -> None:
    """Give each device dropout seeds of its own, after all had rank 0's."""
    strategy = module.strategy
    for seed in (v for v in module.model.variables if v.name == "seed_generator_state"):
        local = strategy.local_values(seed)
        for number, value in enumerate(local):
            value.assign_add(tf.constant([strategy.rank * len(local) + number, 0], value.dtype))
