"""`data.stage=true`: copy the data set to each node's own disk, see `copy.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from train_anywhere.features.feature import Feature
from train_anywhere.files.node_disk import Staged


class Stage(Feature):
    """Read the data set from a copy on the node's own disk."""

    def is_on(self) -> bool:
        """Return whether `data.stage=true`."""
        return self.config.data.stage

    @contextmanager
    def supervise(self, job: Any) -> Iterator[None]:
        """Copy the data set to each node before the ranks start to wait for each other."""
        job.run_on_each_node(job.in_container("-m", "train_anywhere.training.prepare", str(job.run.path)))
        yield

    def stager(self) -> Staged:
        """Return a function that maps a path of the data set to its copy. Raises DataError."""
        from train_anywhere.features.stage.copy import make_stager

        return make_stager(self.config.cluster.local_disk)
