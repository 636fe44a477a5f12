"""Gradients are averaged over all replicas inside of `optimizer.apply`: whatever a `train_step` does, it is right."""

from collections.abc import Sequence
from typing import Any

import keras

from src.errors import ConfigError
from src.training.keras.strategies.base import Strategy


def average_inside(optimizer: keras.optimizers.Optimizer, strategy: Strategy, number: int = 0) -> None:
    """From now on the optimizer averages the gradients before it clips them or checks them for overflow.

    Args:
        number: of the optimizer, if there are several: its collectives need names of their own.
    """
    apply = optimizer.apply

    def averaged(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        present = [g for g in grads if g is not None]  # the same ones on all ranks: they run one graph
        means = iter(strategy.average(present, f"gradients.{number}") if present else [])
        return apply([None if g is None else next(means) for g in grads], trainable_variables)

    optimizer.apply = averaged
    strategy.prepare(optimizer)


def build_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], no_decay: Sequence[str]
) -> None:
    """Create the optimizer's variables, unless it has them.

    Args:
        no_decay: variables with one of these words in their path are not decayed.
    """
    if optimizer.built:
        return
    words = [word.lower() for word in no_decay]
    if kept := [v for v in variables if any(word in v.path.lower() for word in words)]:
        getattr(optimizer, "inner_optimizer", optimizer).exclude_from_weight_decay(var_list=kept)
    optimizer.build(list(variables))


def refuse_late_average(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise ConfigError for weights that are to be averaged over time at the end of `fit`, which is never called."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.use_ema and not inner.ema_overwrite_frequency:
        raise ConfigError(
            "optimizer.use_ema=true puts the averaged weights in place where Keras' fit ends, and this loop ends nowhere for good; add "
            "optimizer.ema_overwrite_frequency=100, or use keras.callbacks.SwapEMAWeights."
        )
