"""Gradients are averaged over all replicas inside of `optimizer.apply`: whatever a `train_step` does, it is right."""

from collections.abc import Sequence
from typing import Any

import keras

from src.errors import ConfigError
from src.training.keras.strategies.base import Strategy


class AveragedApply:
    """An optimizer's `apply` that averages the gradients before they are clipped or checked for overflow.

    Attributes:
        looking: nothing is applied: `seen` is to become known, from a step that is traced and not run.
        seen: the variables that `apply` was called for.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, strategy: Strategy, number: int) -> None:
        self.optimizer, self.strategy = optimizer, strategy
        self.apply = optimizer.apply
        self.name = f"gradients.{number}"
        self.looking, self.seen = False, list[keras.Variable]()

    def __call__(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """As Keras' own."""
        variables = None if trainable_variables is None else list(trainable_variables)
        if self.looking:
            self.seen += [v for v in variables or [] if all(v is not known for known in self.seen)]
            return None
        present = [g for g in grads if g is not None]  # the same ones on all ranks: they run one graph
        self.strategy.pace.computed(present)
        averages = self.strategy.average(present, self.name) if present else []
        self.strategy.pace.averaged(averages)
        means = iter(averages)
        return self.apply([None if g is None else next(means) for g in grads], variables)


def average_inside(
    optimizer: keras.optimizers.Optimizer, strategy: Strategy, number: int = 0
) -> AveragedApply:
    """From now on the optimizer averages the gradients itself.

    Args:
        number: of the optimizer, if there are several: its collectives need names of their own.
    """
    optimizer.apply = AveragedApply(optimizer, strategy, number)
    strategy.prepare(optimizer)
    return optimizer.apply


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
