"""Sweeper over all combinations of the values on the command line."""

import itertools
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from train_anywhere.plugins.launchers import ComposedSweeper


class ProductSweeper(ComposedSweeper):
    """Sweeper that passes all combinations to the launcher at once, and writes no file."""

    def sweep(self, arguments: list[str]) -> Any:
        """Launch all members. Raises ConfigError for an empty sweep or another launcher."""
        launcher = self.own_launcher()
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides(arguments)
        if not any(o.is_sweep_override() for o in overrides):
            return launcher.launch([arguments], initial_job_idx=0)  # Hydra has composed it already
        return launcher.launch(list_members(overrides), initial_job_idx=0)


def list_members(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each member. Raises ConfigError if a sweep is empty."""
    from train_anywhere.config.command.compose import empty_sweep_problem
    from train_anywhere.errors import ConfigError

    sweeps = [o for o in overrides if o.is_sweep_override() and o.is_discrete_sweep()]
    if empty := [o for o in sweeps if not list(o.sweep_string_iterator())]:
        raise ConfigError(*(empty_sweep_problem(str(o.input_line)) for o in empty))
    # the last value of a repeated key counts
    by_key = {
        (key := o.get_key_element()): [f"{key}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [f"{key}={o.get_value_element_as_str()}"]
        for o in overrides
    }
    return [list(member) for member in itertools.product(*by_key.values())]
