"""Average gradients over all replicas inside `optimizer.apply`, so that any `train_step` works on several devices."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.strategies.base import Strategy

NamedVariables = dict[str, keras.Variable]


def name_variables(variables: Sequence[keras.Variable]) -> NamedVariables:
    """Return the variables by their paths; a repeated path gets a number, since two optimizers may have the same name."""
    named: NamedVariables = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in named:
            number += 1
            name = f"{variable.path}#{number}"
        named[name] = variable
    return named


class AveragingApply:
    """A replacement of an optimizer's `apply` that averages the gradients before they are clipped or checked for overflow.

    Attributes:
        tracing: whether to apply nothing and only record `variables`, when a step is traced but not run.
        variables: the variables for which `apply` was called while tracing.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, strategy: Strategy, number: int) -> None:
        self.optimizer, self.strategy = optimizer, strategy
        self.apply = optimizer.apply
        self.name = f"gradients.{number}"
        self.tracing, self.variables = False, list[keras.Variable]()

    def __call__(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Apply the averaged gradients, with the arguments of Keras' own `apply`."""
        variables = None if trainable_variables is None else list(trainable_variables)
        if self.tracing:
            self.variables += [v for v in variables or [] if all(v is not known for known in self.variables)]
            return None
        present = [g for g in grads if g is not None]  # the same ones on all ranks, which run the same graph
        self.strategy.pace.mark_gradients(present)
        averages = self.strategy.average(present, self.name) if present else []
        self.strategy.pace.mark_average(averages)
        means = iter(averages)
        return self.apply([None if g is None else next(means) for g in grads], variables)


def average_in_apply(
    optimizer: keras.optimizers.Optimizer, strategy: Strategy, number: int = 0
) -> AveragingApply:
    """Make an optimizer average the gradients; `number` distinguishes the collectives of several optimizers."""
    optimizer.apply = AveragingApply(optimizer, strategy, number)
    strategy.prepare(optimizer)
    return optimizer.apply


def build_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], no_decay: Sequence[str]
) -> None:
    """Create the optimizer's state for model variables that it has none for yet; existing states keep their values.

    Variables with one of the words of `no_decay` in their path get no weight decay.

    Raises:
        ConfigError: the optimizer can't be built for additional variables.
    """
    known = list(optimizer._trainable_variables) if optimizer.built else []
    new = [v for v in variables if all(v is not k for k in known)]
    if known and not new:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    words = [word.lower() for word in no_decay]
    if undecayed := [v for v in new if any(word in v.path.lower() for word in words)]:
        before: set[Any] = getattr(inner, "_exclude_from_weight_decay", set())
        inner.exclude_from_weight_decay(var_list=undecayed)
        inner._exclude_from_weight_decay |= before
    if not known:
        optimizer.build(list(variables))
        return
    values = {name: np.array(v) for name, v in name_variables(optimizer.variables).items()}
    for part in {id(o): o for o in (optimizer, inner, *getattr(inner, "optimizers", ()))}.values():
        for variable in part._variables[:]:
            if variable is not part._iterations and variable is not part._learning_rate:
                part._untrack_variable(variable)
        part.built = False
    optimizer.build([*known, *new])
    named = name_variables(optimizer.variables)
    if not values.keys() <= named.keys():
        raise ConfigError(
            f"layers became trainable after the start of training, and the optimizer, a {type(inner).__name__}, can't be built for "
            "them; make all layers trainable when the model is created, and freeze them later."
        )
    for name, value in values.items():
        named[name].assign(value)
    for variable, average in weight_averages([optimizer], always=True):
        if any(variable is v for v in new):
            average.assign(variable)


def weight_averages(optimizers: Sequence[keras.optimizers.Optimizer], always: bool) -> list[tuple[Any, Any]]:
    """Return pairs of weights and their moving averages, for optimizers that have them.

    With `always`, include averages that the optimizer itself copies to the weights every `ema_overwrite_frequency` steps.
    """
    return [
        pair
        for part in averaging_optimizers(optimizers)
        if part.built and (always or not part.ema_overwrite_frequency) and part._iterations.numpy()
        for pair in zip(part._trainable_variables, part._model_variables_moving_average, strict=True)
    ]


def averaging_optimizers(optimizers: Sequence[keras.optimizers.Optimizer]) -> list[Any]:
    """Return the optimizers, also inner ones, that keep moving averages of the weights."""
    inner = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer in optimizers]
    return [part for one in inner for part in getattr(one, "optimizers", [one]) if part.use_ema]
