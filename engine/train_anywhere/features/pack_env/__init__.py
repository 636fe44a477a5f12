"""`cluster.pack_env=true`: each node unpacks environment and code onto its own disk.

1. On the login node `archive` finds the virtual environment and packs it, once for each key of its contents, and the code snapshot of
   each job.
2. The supervisor of the job runs `unpack` once on each node, before the ranks.
3. The script `python` starts the ranks and the monitor process: it runs the unpacked Python and code, or the shared ones on a node
   that could not unpack them.

A virtual environment can be moved if its pyvenv.cfg names the Python that created it. So that Python is packed too, unless it is the
system's, which each node has (https://docs.python.org/3/library/venv.html, PEP 405).
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train_anywhere.config.paths import is_node_only
from train_anywhere.errors import SubmitError
from train_anywhere.features.feature import Check, Feature


class PackEnv(Feature):
    """Pack the environment and the code into archives that each node unpacks onto its own disk."""

    python = '"$CODE/train_anywhere/features/pack_env/python"'
    _archive: Path | None = None
    """Archive of the environment, once a submission has packed it."""

    def is_on(self) -> bool:
        """Return whether `cluster.pack_env=true`."""
        return self.config.cluster.pack_env

    def check(self, stage: Check, members: int) -> list[str]:
        """Return problems: a job needs srun and a virtual environment outside a container."""
        if stage == "here":
            return [
                f"cluster.pack_env=true packs the environment for the nodes of a job, and cluster={self.config.cluster.name} is this "
                "machine; leave it out (cluster.pack_env=false), or name a cluster."
            ]
        if stage == "job":
            return self._job_problems()
        return self._environment_problems() if stage == "submission" else []

    def _job_problems(self) -> list[str]:
        c = self.config.cluster
        found = []
        if self.config.container.name != "none":
            found.append(
                f"cluster.pack_env=true and container={self.config.container.name} do not go together: an image is one file already; "
                "use cluster.pack_env=false."
            )
        if c.scheduler == "pbs":
            found.append(
                "cluster.pack_env=true: unpacking the environment once on each node needs srun, which PBS does not have; "
                "use cluster.pack_env=false."
            )
        if c.conda:
            found.append(
                f"cluster.pack_env=true packs virtual environments, and cluster.conda={c.conda} can't be moved; use "
                "cluster.pack_env=false, or pack it with conda-pack and unpack it in cluster.setup."
            )
        return found

    def _environment_problems(self) -> list[str]:
        from train_anywhere.features.pack_env.archive import job_environment, problem  # with tarfile

        c = self.config.cluster
        if c.conda or self.config.container.name != "none":
            return []
        if c.venv and is_node_only(c.venv, c.local_disk, ()):
            why = "is a folder on the job's node, and only an environment on this machine can be packed"
        elif why := problem(job_environment(c)):
            why += ", and only virtual environments can be packed"
        environment = f"cluster.venv={c.venv}" if c.venv else f"the environment of this Python, {sys.prefix},"
        message = (
            f"cluster.pack_env=true: {environment} {why}; use cluster.venv=FOLDER, or cluster.pack_env=false."
        )
        return [message] if why else []

    def variables(self, results: Path | None = None, code: Path | None = None) -> Mapping[str, str]:
        """Return the archive and the folders on a node for what is unpacked.

        A submission packs the environment, unless an archive of it exists, then the code; before that their keys are not known.
        """
        from train_anywhere.features.pack_env.archive import (
            ARCHIVE,
            ENVIRONMENTS,
            job_environment,
            pack,
            pack_code,
            read,
        )

        if results and not code:
            folder = job_environment(self.config.cluster)
            try:
                self._archive = pack(read(folder), results)
            except OSError as error:
                raise SubmitError(
                    f"cluster.pack_env=true: the environment {folder} can't be packed into {results / ENVIRONMENTS}: {error}; use "
                    "cluster.pack_env=false."
                ) from error
        archive = self._archive or Path(self.config.paths.results, ENVIRONMENTS, "<key>", ARCHIVE)
        return {
            "TRAIN_PACKED": f"$TRAIN_LOCAL_DISK/shared-$UID/environment-{archive.parent.name}",
            "TRAIN_PACKED_CODE": f"$TRAIN_LOCAL_DISK/shared-$UID/code-{pack_code(code) if code else '<key>'}",
            "TRAIN_ARCHIVE": str(archive),
        }

    @contextmanager
    def supervise(self, job: Any) -> Iterator[None]:
        """Unpack the archives on each node, which uses the shared files if that fails."""
        code = os.path.join(os.environ["PYTHONPATH"].split(os.pathsep)[0], ".packed.tar")
        unpack = [os.environ["TRAIN_PYTHON"], "-m", "train_anywhere.features.pack_env.unpack"]
        job.run_on_each_node([*unpack, os.environ["TRAIN_ARCHIVE"], code])
        yield
