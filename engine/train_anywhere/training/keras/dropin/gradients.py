"""Average gradients inside `optimizer.apply`, and track which layers are trainable."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import keras
import numpy as np

from train_anywhere.config.instantiate import explain_target_errors
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.adapters import describe_base, hash_weights, select_layers
from train_anywhere.training.keras.private import keep_gradients
from train_anywhere.training.keras.strategies.base import Strategy


def find_parts(model: keras.Model, kind: type) -> list[Any]:
    """Return the objects of a kind among the attributes of a model and its layers, each after those within it."""
    found: list[Any] = []
    seen: set[int] = set()

    def search(value: Any) -> None:
        layer = isinstance(value, keras.layers.Layer)
        if id(value) in seen or not (layer or isinstance(value, kind | list | tuple | dict)):
            return
        seen.add(id(value))
        inner = vars(value) if layer else value
        if isinstance(inner, list | tuple | dict):
            for one in inner.values() if isinstance(inner, dict) else inner:
                search(one)
        if isinstance(value, kind):
            found.append(value)

    search(model)
    return found


def find_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the model and all layers in it, each before those within it."""
    return find_parts(model, keras.layers.Layer)[::-1]


def read_flags(model: keras.Model) -> list[bool]:
    """Return `trainable` of all layers, each before those within it, then of all variables."""
    return [bool(part.trainable) for part in (*find_layers(model), *model.variables)]


def set_flags(model: keras.Model, flags: Sequence[bool]) -> None:
    """Set the flags that `read_flags` returned, unless the model has another number of parts."""
    parts = [*find_layers(model), *model.variables]
    if len(flags) == len(parts):
        for part, flag in zip(parts, flags, strict=True):
            part.trainable = flag


NamedVariables = dict[str, keras.Variable]


def name_variables(variables: Sequence[keras.Variable]) -> NamedVariables:
    """Return the variables by their paths. A repeated path gets a number."""
    named: NamedVariables = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in named:
            number += 1
            name = f"{variable.path}#{number}"
        named[name] = variable
    return named


class AveragingApply:
    """Takes the place of an optimizer's `apply`, and averages the gradients first, in collectives with a `number`.

    `variables` are those for which `apply` was called within `capture`, `recorded` those of the last call in it, None if it named none.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, strategy: Strategy, number: int = 0) -> None:
        self.optimizer, self.strategy = optimizer, strategy
        self.apply, optimizer.apply = optimizer.apply, self
        self.name = f"gradients.{number}"
        self.variables = list[keras.Variable]()
        self.recorded: list[keras.Variable] | None = None
        self._captured: list[Any] | None = None

    @contextmanager
    def capture(self) -> Iterator[list[Any]]:
        """Apply nothing within the block, and add the gradients to the list that this yields."""
        self._captured = []
        try:
            yield self._captured
        finally:
            self._captured = None

    def __call__(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Apply the averaged gradients, with the arguments of Keras' own `apply`."""
        variables = None if trainable_variables is None else list(trainable_variables)
        if self._captured is not None:
            self._captured += grads
            self.recorded = variables
            self.variables += [v for v in variables or [] if all(v is not known for known in self.variables)]
            return None
        present = [g for g in grads if g is not None]  # the same ones on all ranks, which run the same graph
        self.strategy.pace.mark("gradients", present)
        averages = self.strategy.average(present, self.name) if present else []
        self.strategy.pace.mark("average", averages)
        means = iter(averages)
        return self.apply([None if g is None else next(means) for g in grads], variables)


def build_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable], no_decay: Sequence[str]
) -> None:
    """Create the optimizer's state, unless it has one. Variables with one of the words of `no_decay` in their path get no weight decay."""
    if not optimizer.built:
        words = [word.lower() for word in no_decay]
        undecayed = [v for v in variables if any(word in v.path.lower() for word in words)]
        if undecayed:
            inner_optimizer(optimizer).exclude_from_weight_decay(var_list=undecayed)
        optimizer.build(list(variables))
    for one in single_optimizers(optimizer):
        keep_gradients(one)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the optimizer within one that scales the loss, or this one."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def single_optimizers(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the optimizers of groups of variables, or this one, without the scaling of the loss."""
    inner = inner_optimizer(optimizer)
    return list(getattr(inner, "optimizers", [inner]))


ADAPTERS = ("/lora_kernel_a", "/lora_kernel_b", "/lora_embeddings_a", "/lora_embeddings_b")
"""Ends of the names of variables of adapters."""


class Base:
    """The frozen weights of a model with adapters, by name, and its title in messages."""

    def __init__(self, variables: NamedVariables, title: str) -> None:
        self.variables, self.title = variables, title

    @cached_property
    def identity(self) -> list[str]:
        """The hash of the weights, computed at the first use, and the name of the base."""
        arrays = ((n, np.ascontiguousarray(v).reshape(-1)) for n, v in sorted(self.variables.items()))
        return [hash_weights((name, array.view(np.uint8)) for name, array in arrays), self.title]


def add_adapters(model: keras.Model, config: Config, whole: bool) -> Base | None:
    """Add adapters as `model.lora` names, and freeze other layers. Raises ConfigError: the model is not built, or has no such layers."""
    lora = config.model.lora
    if lora is None:
        return None
    if not model.built:
        raise ConfigError(
            "model.lora needs the shapes of the weights: give the model an Input, or call build()."
        )
    layers = {layer.path or layer.name: layer for layer in find_layers(model)}
    trained = {id(v) for name in select_layers(layers, lora.train, "train") for v in layers[name].variables}
    flags = read_flags(model)
    model.trainable = True  # else weights that the user froze would be missing
    base = [v for v in model.trainable_variables if id(v) not in trained]
    set_flags(model, flags)
    for name in sorted(select_layers(layers, lora.targets or [], "targets")):
        layer = layers[name]
        if not hasattr(layer, "enable_lora"):
            raise ConfigError(
                f"model.lora.targets: {name} is a {type(layer).__name__}, which has no enable_lora; name layers such as Dense, "
                "EinsumDense or Embedding."
            )
        with explain_target_errors("model.lora"):
            layer.enable_lora(lora.rank, lora_alpha=lora.alpha)
    for variable in base:
        variable.trainable = False
    chosen = {id(v) for v in base}
    named = name_variables(model.variables)
    return Base({n: v for n, v in named.items() if id(v) in chosen}, describe_base(config, whole))
