"""Sweeper that lets Optuna propose each member by the results of other ones."""

from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from train_anywhere.plugins.launchers import ComposedSweeper, SlurmLauncher, replace_current_cluster


class OptunaSweeper(ComposedSweeper):
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

    def sweep(self, arguments: list[str]) -> Any:
        """Carry out the search.

        Raises:
            ConfigError: lists all problems; nothing was written.
            SubmitInterrupted: after Ctrl-C; the same command continues the search.
        """
        from train_anywhere.errors import ConfigError

        launcher = self.own_launcher()
        if not isinstance(self.params, Mapping):
            raise ConfigError(
                f"hydra.sweeper.params={self.params} is not a search space; use hydra.sweeper.params={{seed:'range(1,9)'}}, or give keys "
                "several values."
            )
        refuse_without_optuna()
        from train_anywhere.search.loop import search
        from train_anywhere.training.preflight import CHECKS

        words = replace_current_cluster(launcher, [*(f"{k}={v}" for k, v in self.params.items()), *arguments])
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides([*words])
        submits = isinstance(launcher, SlurmLauncher)
        search(overrides, self.options, lambda words: launcher.compose_members([words])[0], CHECKS, submits)


def refuse_without_optuna() -> None:
    """Raise ConfigError if Optuna is not installed."""
    from importlib.util import find_spec

    from train_anywhere.errors import ConfigError

    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install optuna.")
