"""Sweeper over all combinations of the values on the command line."""

import itertools
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ProductSweeper(Sweeper):
    """Sweeper that passes all combinations to the launcher at once, and writes no file."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra passes before `sweep`."""
        from hydra.core.plugins import Plugins

        self.context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Launch all members.

        Raises:
            ConfigError: a sweep is empty, or the launcher is not one of this package and would ignore `cluster=`.
        """
        from train_anywhere.errors import ConfigError
        from train_anywhere.plugins.launchers import HereLauncher, SlurmLauncher

        if not isinstance(self.launcher, (HereLauncher, SlurmLauncher)):
            raise ConfigError(
                f"hydra/launcher: {type(self.launcher).__name__} can't be used here; leave it out, cluster= chooses the launcher."
            )
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides(arguments)
        if not any(o.is_sweep_override() for o in overrides):
            return self.launcher.launch([arguments], initial_job_idx=0)  # Hydra has composed it already
        refuse_empty([o for o in overrides if o.is_sweep_override() and o.is_discrete_sweep()])
        # the last value of a repeated key counts
        by_key = {o.get_key_element(): list_values(o) for o in overrides}
        members = itertools.product(*by_key.values())
        return self.launcher.launch([list(m) for m in members], initial_job_idx=0)


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
