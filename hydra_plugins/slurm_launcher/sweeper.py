"""All combinations of the values on the command line."""

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override


class ProductSweeper(BasicSweeper):
    """Hydra's basic sweeper without its multirun.yaml: a refused or dry run writes nothing."""

    def __init__(self) -> None:
        super().__init__(max_batch_size=None)

    def sweep(self, arguments: list[str]) -> Any:
        """Hand all members to the launcher at once."""
        from hydra_plugins.slurm_launcher.launcher import HereLauncher, SlurmLauncher
        from src.errors import ConfigError

        assert self.hydra_context and self.launcher
        if not isinstance(
            self.launcher, (HereLauncher, SlurmLauncher)
        ):  # another one knows nothing of cluster=
            raise ConfigError(
                f"hydra/launcher: {type(self.launcher).__name__} can't be used here; leave it out, cluster= chooses the launcher."
            )
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides(arguments)
        if not any(o.is_sweep_override() for o in overrides):
            return self.launcher.launch([arguments], initial_job_idx=0)  # as typed: composed already
        refuse_empty([o for o in overrides if o.is_sweep_override() and o.is_discrete_sweep()])
        [members] = self.split_arguments(overrides, max_batch_size=None)
        return self.launcher.launch(members, initial_job_idx=0)


def refuse_empty(sweeps: list[Override]) -> None:
    """Raises ConfigError where one of them has no value: Hydra would make no member, or fail."""
    from src.config.compose import empty_sweep
    from src.errors import ConfigError

    if empty := [empty_sweep(str(o.input_line)) for o in sweeps if not list(o.sweep_string_iterator())]:
        raise ConfigError(*empty)
