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
        from src.config.environment_values import plain

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
        from slurm.launch import start
        from src.launch.ahead import data_problems, refuse_unreadable_run

        members = job_overrides
        if self.config.cluster.name == "current":
            from slurm.presets import name_current

            members = [name_current(m) for m in job_overrides]
        sweeper = str(self.config.hydra.sweeper.get("_target_", ""))
        results = start(
            self.trees(members),
            members,
            data_problems,
            refuse_unreadable_run,
            wants_results=not sweeper.endswith(".ProductSweeper"),
        )
        return [_returned(r) for r in results]


class HereLauncher(_Composer):
    """`-m` without a cluster: check all members, then run each in a process of its own."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all members, also after one has failed; leaves with an exit code when one did.

        Raises:
            ConfigError: with all problems of all members; nothing was started.
        """
        from src.launch.sweep import run_all

        code = run_all(self.trees(job_overrides), job_overrides)
        if code:
            sys.exit(code)
        return []


def _returned(result: float | None) -> JobReturn:
    returned = JobReturn(status=JobStatus.COMPLETED)
    returned.return_value = result
    return returned
