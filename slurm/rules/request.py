"""What the rules look at."""

import getpass
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm.job import Job
from src.config.cluster import Site
from src.config.schema import Config


def user() -> str:
    """The name of whoever submits, also where $USER is not set; the number of a user without a name."""
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
    """What the rules look at.

    Attributes:
        config, job: what was asked for, and the job made of it.
        data_problems: the check of the data set, passed in: this room knows none.
        folder: where the command was typed.
        environ: the environment, for $USER and $SCRATCH in the site's folders.
    """

    config: Config
    job: Job
    data_problems: DataCheck
    folder: Path = field(default_factory=Path.cwd)
    environ: Mapping[str, str] = field(default_factory=lambda: {**os.environ, "USER": user()})

    @property
    def site(self) -> Site:
        """Facts of the site."""
        return self.config.cluster.site

    @property
    def cluster(self) -> str:
        """Name of the preset."""
        return self.config.cluster.name


Rule = Callable[[Request], Iterator[str]]
