"""Build the network of a native task from the `model` section and facts about the data set."""

from collections.abc import Collection, Mapping
from typing import Any

from train_anywhere.config.choices import Model
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError


def build_network(config: Config, facts: Mapping[str, Any]) -> Any:
    """Return a network of the run's framework.

    Args:
        config: the configuration; `model` names the network.
        facts: `facts` of the `Splits`, values for the arguments in `model.from_data`.

    Raises:
        ConfigError: the model does not accept its arguments, or the data set lacks a fact that `model.from_data` names.
    """
    if problems := missing_facts(config.model, config.data.name, facts):
        raise ConfigError(*problems)
    wanted = config.model.from_data
    supplied = {argument: facts[fact] for argument, fact in wanted.items() if fact in facts}
    return instantiate(config.model, "model", config.framework, **supplied)


def missing_facts(model: Model, data: str, facts: Collection[str]) -> list[str]:
    """Return a message for each argument in `model.from_data` whose fact is not in `facts`; `data` is the name of the data set."""
    return [
        f"model.from_data.{argument}={fact}: data={data} has no '{fact}'{did_you_mean(fact, facts)} "
        f"Use another model= for this data, or give model.{argument} a value."
        for argument, fact in model.from_data.items()
        if fact not in facts and argument not in model.arguments
    ]
