"""`cluster.pack_env=true`: the environment and the code of a job as two archives, which each node unpacks once onto its own disk.

1. `virtual_env` finds the virtual environment and says what is in it, by a key; `archive` packs it on the login node, once for each
   key, and the copy of the code of each job.
2. The batch script (`before_ranks.sh.j2`) starts `unpack` once on each node, before the ranks.
3. The ranks, and what runs beside them, are started by the script `python` here: it runs the unpacked Python and code where
   they are, and the shared ones on a node that could not unpack them.

A virtual environment can be moved as long as its pyvenv.cfg says where the Python is that it was made with. So that Python is
packed with it, unless it is the system's, which each node has (https://docs.python.org/3/library/venv.html, PEP 405).
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from train_anywhere.config.paths import node_only
from train_anywhere.errors import SubmitError
from train_anywhere.features.feature import Feature
from train_anywhere.features.pack_env.virtual_env import ARCHIVE, ENVIRONMENTS, of_job, problem, read


@dataclass(frozen=True)
class Packed:
    """The archives of a job.

    Attributes:
        archive: absolute path of the archive of the environment.
        code: key of the archive of the code, which lies in the code snapshot.
    """

    archive: str
    code: str

    @property
    def environment(self) -> str:
        """Key of the environment."""
        return Path(self.archive).parent.name


class PackEnv(Feature):
    """Pack the environment and the code into archives, which each node unpacks on its own disk."""

    name = "pack_env"
    exports = ("TRAIN_PYTHON", "TRAIN_PACKED", "TRAIN_PACKED_CODE")
    python = '"$CODE/train_anywhere/features/pack_env/python"'

    def wanted(self) -> bool:
        """Return whether `cluster.pack_env=true`."""
        return self.config.cluster.pack_env

    def problems_of_job(self, members: int) -> list[str]:
        """Only a virtual environment outside of a container can be packed, and only srun unpacks it."""
        c = self.config.cluster
        found = []
        if self.config.container.name != "none":
            found.append(
                f"cluster.pack_env=true and container={self.config.container.name} do not go together: an image is one file already; "
                "use cluster.pack_env=false."
            )
        if c.scheduler == "pbs":
            found.append(
                "cluster.pack_env=true: PBS has no srun, with which the environment is unpacked once on each node; "
                "use cluster.pack_env=false."
            )
        if c.conda:
            found.append(
                f"cluster.pack_env=true packs virtual environments, and the files of cluster.conda={c.conda} name its folder; use "
                "cluster.pack_env=false, or let conda-pack pack it and unpack that in cluster.setup."
            )
        return found

    def problems_here(self) -> list[str]:
        """A run on this machine has nothing to unpack."""
        return [
            f"cluster.pack_env=true packs the environment for the nodes of a job, and cluster={self.config.cluster.name} is this machine; "
            "leave it out (cluster.pack_env=false), or name a cluster."
        ]

    def problems_at_submission(self) -> list[str]:
        """The environment is a virtual one of this machine."""
        c = self.config.cluster
        if c.conda or self.config.container.name != "none":
            return []
        if c.venv and node_only(c.venv, c.local_disk, ()):
            why = "is a folder of the job's node, and what this machine has is packed"
        elif why := problem(of_job(c)):
            why += ", and virtual environments are packed"
        named = f"cluster.venv={c.venv}" if c.venv else f"the environment of this Python, {sys.prefix},"
        return (
            [f"cluster.pack_env=true: {named} {why}; use cluster.venv=FOLDER, or cluster.pack_env=false."]
            if why
            else []
        )

    def settings(self) -> Packed:
        """Return the archives; their keys are computed when the job is submitted."""
        return Packed(f"{self.config.paths.results}/{ENVIRONMENTS}/<key>/{ARCHIVE}", "<key>")

    def before_submission(self, settings: Packed, results: Path) -> Packed:
        """Pack the environment; one that was packed before is used again."""
        from train_anywhere.features.pack_env.archive import pack

        folder = of_job(self.config.cluster)
        try:
            return replace(settings, archive=str(pack(read(folder), results)))
        except OSError as error:
            raise SubmitError(
                f"cluster.pack_env=true: the environment {folder} can't be packed into {results / ENVIRONMENTS}: {error}; use "
                "cluster.pack_env=false."
            ) from error

    def after_snapshot(self, settings: Packed, code: Path) -> Packed:
        """Pack the copy of the code."""
        from train_anywhere.features.pack_env.archive import pack_code

        return replace(settings, code=pack_code(code))
