"""Gradients are averaged over all replicas inside of `optimizer.apply`: whatever a `train_step` does, it is right."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy

Saved = dict[str, keras.Variable]


def by_name(variables: Sequence[keras.Variable]) -> Saved:
    """Variables by their paths; a path that comes again gets a number: two optimizers may have one name."""
    named: Saved = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in named:
            number += 1
            name = f"{variable.path}#{number}"
        named[name] = variable
    return named


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
    """Create the optimizer's variables for those that it has none for yet; those that it has keep their values.

    Args:
        no_decay: variables with one of these words in their path are not decayed.

    Raises:
        ConfigError: it can't be built for more variables.
    """
    known = list(optimizer._trainable_variables) if optimizer.built else []
    new = [v for v in variables if all(v is not k for k in known)]
    if known and not new:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    words = [word.lower() for word in no_decay]
    if kept := [v for v in new if any(word in v.path.lower() for word in words)]:
        before: set[Any] = getattr(inner, "_exclude_from_weight_decay", set())
        inner.exclude_from_weight_decay(var_list=kept)
        inner._exclude_from_weight_decay |= before
    if not known:
        optimizer.build(list(variables))
        return
    values = {name: np.array(v) for name, v in by_name(optimizer.variables).items()}
    for part in {id(o): o for o in (optimizer, inner, *getattr(inner, "optimizers", ()))}.values():
        for variable in part._variables[:]:
            if variable is not part._iterations and variable is not part._learning_rate:
                part._untrack_variable(variable)
        part.built = False
    optimizer.build([*known, *new])
    named = by_name(optimizer.variables)
    if not values.keys() <= named.keys():
        raise ConfigError(
            f"layers are trained now that were not when training began, and the optimizer, a {type(inner).__name__}, can't be built for "
            "them; let all layers be trainable when the model is made, and freeze them later."
        )
    for name, value in values.items():
        named[name].assign(value)
    for variable, average in averages([optimizer], always=True):
        if any(variable is v for v in new):
            average.assign(variable)


def averages(optimizers: Sequence[keras.optimizers.Optimizer], always: bool) -> list[tuple[Any, Any]]:
    """Return weights and their averages over time, where optimizers have them.

    Args:
        always: also those that an optimizer writes over the weights every `ema_overwrite_frequency` steps.
    """
    return [
        pair
        for part in averaging(optimizers)
        if part.built and (always or not part.ema_overwrite_frequency) and part._iterations.numpy()
        for pair in zip(part._trainable_variables, part._model_variables_moving_average, strict=True)
    ]


def averaging(optimizers: Sequence[keras.optimizers.Optimizer]) -> list[Any]:
    """Return those of the optimizers, or in them, that average weights over time."""
    inner = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer in optimizers]
    return [part for one in inner for part in getattr(one, "optimizers", [one]) if part.use_ema]
