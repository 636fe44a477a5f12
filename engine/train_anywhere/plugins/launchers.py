"""Two launchers: one hands composed configurations to the scheduler, one runs them here. All work is done elsewhere."""

import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class _Composer(Launcher):
    """What both need: the members of a sweep as plain trees."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra before `launch`."""
        self.context, self.config = hydra_context, config

    def trees(self, members: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Compose each member; a single one is what Hydra has composed already."""
        from train_anywhere.config.environment_values import plain

        if len(members) == 1 and list(members[0]) == list(self.config.hydra.overrides.task):
            return [plain(self.config)]
        loader = self.context.config_loader
        return [plain(loader.load_sweep_config(self.config, list(m))) for m in members]


class SlurmLauncher(_Composer):
    """`cluster=neuron`: submit and return at once; inside an allocation, run there."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit one job, or one array for all members of a sweep.

        Raises:
            ConfigError: with all problems; nothing was written.
            SubmitError: in the scheduler's words; nothing is left behind.
        """
        from train_anywhere.launch.preflight import data_problems, refuse_unreadable_run
        from train_anywhere.slurm.submission.prepare import start

        members = name_cluster(self, job_overrides)
        sweeper = str(self.config.hydra.sweeper.get("_target_", ""))
        wants = not sweeper.endswith(".ProductSweeper")
        results = start(
            self.trees(members), members, data_problems, refuse_unreadable_run, wants_results=wants
        )
        if not wants and (failed := [r for r in results if isinstance(r, Exception)]):
            raise failed[0]
        return [_returned(*both) for both in zip(members, results, strict=True)]


class HereLauncher(_Composer):
    """`-m` without a cluster: check all members, then run each in a process of its own."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all members, also after one has failed; leaves with an exit code when one did, unless the sweeper wants the results.

        Raises:
            ConfigError: with all problems of all members; nothing was started.
        """
        from train_anywhere.launch.local_sweep import run_all
        from train_anywhere.slurm.status.best import result

        ended = run_all(self.trees(job_overrides), job_overrides)
        sweeper = str(self.config.hydra.sweeper.get("_target_", ""))
        if sweeper.endswith(".ProductSweeper") and (code := next((e.code for e in ended if e.code), 0)):
            sys.exit(code)
        return [
            _returned(words, result(e.run, e.config)) for words, e in zip(job_overrides, ended, strict=False)
        ]


def name_cluster(launcher: _Composer, members: Sequence[Any]) -> Sequence[Any]:
    """The members, or the words of one, with the preset of this machine in place of `cluster=current`."""
    if launcher.config.cluster.name != "current":
        return members
    from train_anywhere.slurm.presets import name_current

    return [name_current([m])[0] if isinstance(m, str) else name_current(m) for m in members]


def _returned(words: Sequence[str], result: "float | Exception | None") -> JobReturn:
    """What a sweeper gets: a number, or the reason why there is none, which reading it raises."""
    failed = isinstance(result, Exception)
    returned = JobReturn(overrides=words, status=JobStatus.FAILED if failed else JobStatus.COMPLETED)
    returned.return_value = result
    return returned
