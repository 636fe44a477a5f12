"""Lightning's cluster environment, from the ranks that `train_anywhere.distributed` has found."""

from lightning.pytorch.plugins.environments import ClusterEnvironment

from train_anywhere.distributed.topology import Topology


class TopologyEnvironment(ClusterEnvironment):
    """A cluster environment from a `Topology`.

    Lightning's own environments read the variables of Slurm or torchrun again, with their own conditions (the
    same number of ranks on every node, --ntasks-per-node given), signal handlers and requeue.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """The address on which rank 0 listens."""
        return self.topology.coordinator_address

    @property
    def main_port(self) -> int:
        """The port on which rank 0 listens."""
        return self.topology.coordinator_port

    @staticmethod
    def detect() -> bool:
        """Return False, so that Lightning never picks this environment by itself."""
        return False

    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.topology.world_size

    def set_world_size(self, size: int) -> None:
        """Ignore Lightning's value, ranks per node times nodes, which is wrong for uneven jobs."""

    def global_rank(self) -> int:
        """Return the number of this rank."""
        return self.topology.rank

    def set_global_rank(self, rank: int) -> None:
        """Ignore Lightning's value, as in `set_world_size`."""

    def local_rank(self) -> int:
        """Return the number of this rank on its node."""
        return self.topology.local_rank

    def node_rank(self) -> int:
        """Return the number of this node."""
        return self.topology.node_rank
