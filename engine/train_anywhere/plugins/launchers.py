"""Hydra's launchers, which submit composed configurations or run them here, and its sweepers."""

import sys
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from train_anywhere.launch.local_run import FinishedMember


class _Composer(Launcher):
    """Base of both launchers, which composes the members of a sweep."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra passes before `launch`."""
        self.context, self.config = hydra_context, config
        self.starter: Any = task_function  # of src/train.py or src/run.py: a commands.train.Starter
        self.wants_results = not str(config.hydra.sweeper.get("_target_", "")).endswith(".ProductSweeper")

    def name_cluster(self, words: Sequence[str]) -> list[str]:
        """Return overrides with this machine's preset for `current`, which a file may choose too. Raises ConfigError if none fits."""
        from train_anywhere.slurm.presets import resolve_current

        by_file = self.config.cluster.name == "current" and not any(w.startswith("cluster=") for w in words)
        return resolve_current([*words, *(["cluster=current"] if by_file else [])])

    def compose_members(self, members: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Return each member as a plain tree. Hydra has composed a single one already.

        Hydra needs 80 ms of CPU for a composition, and sets values like `seed=2` only after it: members with the same choices share one.
        """
        from train_anywhere.config.command.compose import list_groups
        from train_anywhere.config.load import to_plain_tree

        if len(members) == 1 and list(members[0]) == list(self.config.hydra.overrides.task):
            return [self.starter.complete(to_plain_tree(self.config))]
        groups, composed = {*list_groups(), *self.config.hydra.runtime.choices}, dict[str, DictConfig]()
        trees = []
        for overrides in map(OverridesParser.create().parse_overrides, map(list, members)):
            values = [o for o in overrides if is_value(o, groups)]
            choices = [str(o.input_line) for o in overrides if o not in values]
            if str(choices) not in composed:
                loader = self.context.config_loader
                composed[str(choices)] = loader.load_sweep_config(self.config, choices)
            config = deepcopy(composed[str(choices)])
            ConfigLoaderImpl._apply_overrides_to_config(values, config)
            trees.append(self.starter.complete(to_plain_tree(config)))
        return trees


def is_value(override: Override, groups: Collection[Any]) -> bool:
    """Return whether Hydra sets an override after a composition: it selects no file, and adds or deletes no group."""
    key, plain = override.key_or_group, override.type == OverrideType.CHANGE
    return "." in key or isinstance(override.value(), dict) or (plain and key not in groups)


class ComposedSweeper(Sweeper):
    """Base of both sweepers, whose members one of the launchers of this module composes."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra passes before `sweep`."""
        self.context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def own_launcher(self) -> _Composer:
        """Return the launcher. Raises ConfigError if it would ignore `cluster=`."""
        from train_anywhere.errors import ConfigError

        if isinstance(self.launcher, _Composer):
            return self.launcher
        raise ConfigError(
            f"hydra/launcher: {type(self.launcher).__name__} can't be used here; leave it out, cluster= chooses the launcher."
        )


class SlurmLauncher(_Composer):
    """`cluster=neuron`: submit and return at once, or run in this allocation."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit one job, or one array for all members of a sweep.

        Raises:
            ConfigError: lists all problems, or the sweeper needs results without wait=true; nothing was written.
            SubmitError: has the scheduler's message; nothing was submitted and no folder stays.
        """
        from train_anywhere.errors import ConfigError
        from train_anywhere.slurm.submission.prepare import start

        members = [self.name_cluster(member) for member in job_overrides]
        if self.wants_results and not self.config.wait:
            raise ConfigError(
                "this sweeper decides by the results of the members, but a submission returns before they ran; "
                "use wait=true, or hydra/sweeper=product."
            )
        trees = self.compose_members(members)
        with self.starter.as_typed():
            results = start(trees, members, *self.starter.checks[:2])
        if not self.wants_results and (failed := [r for r in results if isinstance(r, Exception)]):
            raise failed[0]
        return [_make_job_return(*both) for both in zip(members, results, strict=True)]


class HereLauncher(_Composer):
    """`-m` without a cluster: check all members, then run each in its own process."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all members, even after a failure.

        If one failed, exit with its code, unless the sweeper needs the results. Raises ConfigError: lists the problems of all members;
        nothing was started.
        """
        from train_anywhere.launch.local_run import run_all
        from train_anywhere.slurm.status.best import sweep_result

        trees = self.compose_members(job_overrides)
        with self.starter.as_typed():
            ended = run_all(trees, job_overrides, self.starter.checks)
        if not self.wants_results:
            print_sweep(ended)
        return [
            _make_job_return(words, sweep_result(e.run, e.config.checkpoint))
            for words, e in zip(job_overrides, ended, strict=False)
        ]


def print_sweep(ended: "Sequence[FinishedMember]") -> None:
    """Print the table of a sweep on this machine, and exit with the code of a failed member."""
    from train_anywhere.slurm.status.find_runs import read_entry
    from train_anywhere.slurm.status.sweep_page import sweep_lines

    code = next((e.code for e in ended if e.code), 0)
    try:
        if len(ended) > 1:
            print(sweep_lines([read_entry(e.run.path) for e in ended]), flush=True)
    finally:  # also if nobody reads the table
        if code:
            sys.exit(code)


def _make_job_return(words: Sequence[str], result: "float | Exception | None") -> JobReturn:
    """Return the result for a sweeper: a number, or an exception raised when it is read."""
    status = JobStatus.FAILED if isinstance(result, Exception) else JobStatus.COMPLETED
    return JobReturn(overrides=words, status=status, _return_value=result)


class ProductSweeper(ComposedSweeper):
    """All combinations of values, in one call of the launcher; unlike Hydra's sweeper it writes no file."""

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
    [members] = BasicSweeper.split_arguments([*overrides], None)
    return members


class OptunaSweeper(ComposedSweeper):
    """`-m hydra/sweeper=optuna`: each trial is proposed by the results of others, see `train_anywhere.search`."""

    def __init__(self, params: Mapping[str, Any] | None = None, **options: Any) -> None:
        self.params, self.options = params or {}, options

    def sweep(self, arguments: list[str]) -> Any:
        """Carry out the search. Raises ConfigError: nothing was written. Raises SubmitInterrupted: the same command continues it."""
        from train_anywhere.errors import ConfigError

        launcher = self.own_launcher()
        if not isinstance(self.params, Mapping):
            raise ConfigError(
                f"hydra.sweeper.params={self.params} is not a search space; use hydra.sweeper.params={{seed:'range(1,9)'}}, or give keys "
                "several values."
            )
        from train_anywhere.search.loop import search

        words = launcher.name_cluster([*(f"{k}={v}" for k, v in self.params.items()), *arguments])
        overrides = OverridesParser.create(self.context.config_loader).parse_overrides(words)
        submits, checks = isinstance(launcher, SlurmLauncher), launcher.starter.checks
        with launcher.starter.as_typed():
            search(
                overrides, self.options, lambda words: launcher.compose_members([words])[0], checks, submits
            )
