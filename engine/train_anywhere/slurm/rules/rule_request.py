"""The request that the rules check: a configuration, the job made of it, and where it is submitted."""

import getpass
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train_anywhere.config.cluster import Site
from train_anywhere.config.schema import Config
from train_anywhere.slurm.script.job import Job


def user() -> str:
    """The user's name, even if $USER is not set; the id of a user without a name."""
    if name := os.environ.get("USER"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


DataCheck = Callable[[Config, int, bool], list[str]]
"""One sentence for each reason why no training could begin; by configuration, devices over all nodes, and whether the data's
folder is one of this machine."""


@dataclass(frozen=True)
class Request:
    """What the rules check.

    Attributes:
        config, job: the configuration, and the job made of it.
        data_problems: the check of the data set, passed in: this room knows none.
        folder: working directory of the command.
        environ: the environment, for $USER and $SCRATCH in the site's folders.
    """

    config: Config
    job: Job
    data_problems: DataCheck
    folder: Path = field(default_factory=Path.cwd)
    environ: Mapping[str, str] = field(default_factory=lambda: {**os.environ, "USER": user()})

    @property
    def site(self) -> Site:
        """The facts about the site."""
        return self.config.cluster.site

    @property
    def cluster(self) -> str:
        """Name of the preset."""
        return self.config.cluster.name


Rule = Callable[[Request], Iterator[str]]
