"""`data.stage=true`: each node copies the data set to its own disk before the ranks start; see `copy.py`."""

from train_anywhere.data.known import Staged
from train_anywhere.features.feature import Feature


class Stage(Feature):
    """Read the data set from a copy on the disk of the node."""

    name = "stage"

    def wanted(self) -> bool:
        """Return whether `data.stage=true`."""
        return self.config.data.stage

    def staging(self) -> Staged:
        """Return a function from a path of the data set to its copy on this node. Raises DataError."""
        from train_anywhere.features.stage.copy import staging

        return staging(self.config.cluster.local_disk)
