"""Random numbers: one seed for the run, different dropout on each device. Their states are variables, saved as such."""

import keras
import tensorflow as tf

from train_anywhere.training.keras.module import Module


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and TensorFlow.

    tf.config.experimental.enable_op_determinism() stays off: a CPU repeats its bits without it, and with it the
    threads that read data would take turns. It is what to add on GPUs if every bit counts.
    """
    keras.utils.set_random_seed(seed)


def leave_graphs_as_written() -> None:
    """On CPUs, keep TensorFlow's graph optimizer (Grappler) from steps that return their logs, so that they repeat their bits.

    Measured with TensorFlow 2.21 and a ResNet-50 in batches of 8, with two threads for operations: with the optimizer, runs ended
    with other weights, also under enable_op_determinism(); without it all were the same, and a step took as long. On GPUs it stays on.
    """
    if not tf.config.get_visible_devices("GPU"):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def part_seeds(module: Module) -> None:
    """Give each device dropout seeds of its own, after all had rank 0's."""
    strategy = module.strategy
    for seed in (v for v in module.model.variables if v.name == "seed_generator_state"):
        local = strategy.local_values(seed)
        for number, value in enumerate(local):
            value.assign_add(tf.constant([strategy.rank * len(local) + number, 0], value.dtype))
