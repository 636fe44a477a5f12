"""The network of a native task: what `model` names, with what the data set says of itself."""

from collections.abc import Collection, Mapping
from typing import Any

from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError


def build_network(config: Config, facts: Mapping[str, Any]) -> Any:
    """A network of the framework of the run; `facts` are those of the `Splits`.

    Raises:
        ConfigError: the model takes other arguments, or one in its `from_data` that the data set does not say.
    """
    if problems := unsaid(config, facts):
        raise ConfigError(*problems)
    wanted = config.model.from_data
    supplied = {argument: facts[fact] for argument, fact in wanted.items() if fact in facts}
    return instantiate(config.model, "model", config.framework, **supplied)


def unsaid(config: Config, facts: Collection[str]) -> list[str]:
    """A sentence for each argument of the model that the data set is to say and does not; `facts` are the names of those it does."""
    return [
        f"model.from_data.{argument}={fact}: data={config.data.name} does not say its '{fact}'{did_you_mean(fact, facts)} "
        f"Use another model= for this data, or give model.{argument} a value."
        for argument, fact in config.model.from_data.items()
        if fact not in facts and argument not in config.model.arguments
    ]
