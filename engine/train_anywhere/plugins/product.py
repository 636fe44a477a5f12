"""All combinations of the values on the command line."""

import itertools
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ProductSweeper(Sweeper):
    """Hands every combination to the launcher at once; unlike Hydra's own it writes no multirun.yaml, so that a refused or dry
    run writes nothing.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra before `sweep`."""
        from hydra.core.plugins import Plugins

        self.context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Launch all members.

        Raises:
            ConfigError: a sweep over nothing, or another launcher than ours, which would know nothing of `cluster=`.
        """
        from train_anywhere.errors import ConfigError
        from train_anywhere.plugins.launchers import HereLauncher, SlurmLauncher

        if not isinstance(self.launcher, (HereLauncher, SlurmLauncher)):
            raise ConfigError(
                f"hydra/launcher: {type(self.launcher).__name__} can't be used here; leave it out, cluster= chooses the launcher."
            )
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides(arguments)
        if not any(o.is_sweep_override() for o in overrides):
            return self.launcher.launch([arguments], initial_job_idx=0)  # as typed: composed already
        refuse_empty([o for o in overrides if o.is_sweep_override() and o.is_discrete_sweep()])
        # the last one counts where a key is given twice
        by_key = {o.get_key_element(): choices(o) for o in overrides}
        members = itertools.product(*by_key.values())
        return self.launcher.launch([list(m) for m in members], initial_job_idx=0)


def choices(override: Override) -> list[str]:
    """The override once for each of its values."""
    key = override.get_key_element()
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [f"{key}={override.get_value_element_as_str()}"]


def refuse_empty(sweeps: list[Override]) -> None:
    """Raises ConfigError where one of them has no value: there would be no member."""
    from train_anywhere.config.command.compose import empty_sweep
    from train_anywhere.errors import ConfigError

    if empty := [empty_sweep(str(o.input_line)) for o in sweeps if not list(o.sweep_string_iterator())]:
        raise ConfigError(*empty)
