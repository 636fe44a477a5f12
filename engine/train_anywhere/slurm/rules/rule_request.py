"""The request that the rules check: a configuration, its job, and where it is submitted."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train_anywhere.config.cluster import Site
from train_anywhere.config.schema import Config
from train_anywhere.slurm.script.accounts import user_name
from train_anywhere.slurm.script.job import Job

DataCheck = Callable[[Config, int, bool], list[str]]
"""Returns the problems of the data set, from the configuration, the devices over all nodes, and whether to look into its folder."""


@dataclass(frozen=True)
class Request:
    """A configuration with its job, and where it is submitted.

    Attributes:
        config: the configuration of the run.
        job: the job of the run.
        data_problems: the check of the data set, injected so that `slurm` does not import `data`.
        folder: working directory of the command.
        environ: environment variables, for $USER and $SCRATCH in the site's folders.
        on_node: whether the command runs on the only node of the job, so that no folder needs to be shared.
    """

    config: Config
    job: Job
    data_problems: DataCheck
    folder: Path = field(default_factory=Path.cwd)
    environ: Mapping[str, str] = field(default_factory=lambda: {**os.environ, "USER": user_name()})
    on_node: bool = False

    @property
    def site(self) -> Site:
        """The facts about the site."""
        return self.config.cluster.site

    @property
    def cluster(self) -> str:
        """The name of the preset."""
        return self.config.cluster.name
