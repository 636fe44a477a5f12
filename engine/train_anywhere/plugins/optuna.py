"""Sweeper that lets Optuna propose each member by the results of earlier ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class OptunaSweeper(Sweeper):
    """The sweeper `-m hydra/sweeper=optuna`, a wrapper of `train_anywhere.search`.

    Args:
        n_trials: number of all trials.
        n_jobs: number of trials that run at the same time.
        study_name: name of a study to start or continue; None: an unfinished study of the same command, else a new one.
        sampler: tpe or random.
        pruner: none, or median: a trial that does worse than half of the others did at the same validation is stopped.
        params: search space in addition to the command line: {optimizer.lr: "interval(0.001, 0.1)"}.
    """

    def __init__(self, params: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.params, self.options = params or {}, options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra passes before `sweep`."""
        self.context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Carry out the search.

        Raises:
            ConfigError: lists all problems; nothing was written.
            SubmitInterrupted: after Ctrl-C; the same command continues the search.
        """
        from train_anywhere.errors import ConfigError
        from train_anywhere.plugins.launchers import HereLauncher, SlurmLauncher, replace_current_cluster

        if not isinstance(self.launcher, HereLauncher | SlurmLauncher):
            raise ConfigError(
                f"hydra/launcher: {type(self.launcher).__name__} can't be used here; leave it out, cluster= chooses the launcher."
            )
        if not isinstance(self.params, Mapping):
            raise ConfigError(
                f"hydra.sweeper.params={self.params} is not a search space; use hydra.sweeper.params={{seed:'range(1,9)'}}, or give keys "
                "several values."
            )
        refuse_without_optuna()
        from train_anywhere.search.start_search import search

        launcher = self.launcher
        words = replace_current_cluster(launcher, [*(f"{k}={v}" for k, v in self.params.items()), *arguments])
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides([*words])

        def compose(member: Sequence[str]) -> dict[str, Any]:
            return launcher.compose_members([member])[0]

        search(overrides, self.options, compose, isinstance(launcher, SlurmLauncher))


def refuse_without_optuna() -> None:
    """Raise ConfigError if Optuna is not installed."""
    from importlib.util import find_spec

    from train_anywhere.errors import ConfigError

    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install optuna.")
