"""Sweeper over all combinations of the values on the command line."""

import itertools
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from train_anywhere.plugins.launchers import ComposingSweeper


class ProductSweeper(ComposingSweeper):
    """Sweeper that passes all combinations to the launcher at once, and writes no file."""

    def sweep(self, arguments: list[str]) -> Any:
        """Launch all members. Raises ConfigError for an empty sweep or another launcher."""
        launcher = self.find_launcher()
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides(arguments)
        if not any(o.is_sweep_override() for o in overrides):
            return launcher.launch([arguments], initial_job_idx=0)  # Hydra has composed it already
        refuse_empty([o for o in overrides if o.is_sweep_override() and o.is_discrete_sweep()])
        # the last value of a repeated key counts
        by_key = {o.get_key_element(): list_values(o) for o in overrides}
        members = itertools.product(*by_key.values())
        return launcher.launch([list(m) for m in members], initial_job_idx=0)


def list_values(override: Override) -> list[str]:
    """Return one override for each value of a sweep."""
    key = override.get_key_element()
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [f"{key}={override.get_value_element_as_str()}"]


def refuse_empty(sweeps: list[Override]) -> None:
    """Raise ConfigError if a sweep has no values: there would be no members."""
    from train_anywhere.config.command.compose import empty_sweep_problem
    from train_anywhere.errors import ConfigError

    if empty := [
        empty_sweep_problem(str(o.input_line)) for o in sweeps if not list(o.sweep_string_iterator())
    ]:
        raise ConfigError(*empty)
