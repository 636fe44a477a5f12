"""LoRA by Keras' own `enable_lora`, and which variables are the base that checkpoints leave out."""

import keras
import numpy as np

from train_anywhere.config.instantiate import explain_target_errors
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.adapters import describe_base, hash_weights, select_layers
from train_anywhere.training.keras.dropin.gradients import NamedVariables, name_variables

ADAPTERS = ("/lora_kernel_a", "/lora_kernel_b", "/lora_embeddings_a", "/lora_embeddings_b")
"""Ends of the names of variables of adapters."""


class Base:
    """The frozen weights of a model with adapters.

    Attributes:
        variables: the weights, by name.
        title: the name of the base in messages.
    """

    def __init__(self, variables: NamedVariables, title: str) -> None:
        self.variables, self.title, self._hash = variables, title, ""

    @property
    def identity(self) -> list[str]:
        """The hash of the weights, computed at the first use, and the name of the base."""
        if not self._hash:
            arrays = (
                (name, np.ascontiguousarray(v).reshape(-1)) for name, v in sorted(self.variables.items())
            )
            self._hash = hash_weights((name, array.view(np.uint8)) for name, array in arrays)
        return [self._hash, self.title]

    def refuse_trained(self) -> None:
        """Raise ConfigError if a callback has unfrozen weights that checkpoints do not hold."""
        if thawed := [name for name, variable in self.variables.items() if variable.trainable]:
            raise ConfigError(
                f"{thawed[0]} became trainable, and checkpoints of a run with model.lora leave it out; name its layer in "
                "model.lora.train."
            )


def add_adapters(model: keras.Model, config: Config, whole: bool) -> Base | None:
    """Add adapters to the layers that `model.lora` names, if it is set, and freeze the others; `whole`: the task is the model.

    Raises:
        ConfigError: the model is not built, or has no such layers.
    """
    lora = config.model.lora
    if lora is None:
        return None
    if not model.built:
        raise ConfigError(
            "model.lora needs the shapes of the weights: give the model an Input, or call build()."
        )
    layers = {layer.path or layer.name: layer for layer in model._flatten_layers()}
    trained = {id(v) for name in select_layers(layers, lora.train, "train") for v in layers[name].variables}
    base = [v for layer in layers.values() for v in layer._trainable_variables if id(v) not in trained]
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
