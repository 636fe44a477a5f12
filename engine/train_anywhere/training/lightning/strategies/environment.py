"""Lightning's view of this rank, taken from `train_anywhere.distributed.discover`."""

from lightning.pytorch.plugins.environments import ClusterEnvironment

from train_anywhere.distributed.topology import Topology


class TopologyEnvironment(ClusterEnvironment):
    """Takes everything from a `Topology`.

    Lightning's own environments read Slurm's or torchrun's variables again, each with its own conditions (the
    same number of ranks on every node, --ntasks-per-node given), signal handlers and requeue.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """Where rank 0 listens."""
        return self.topology.coordinator_address

    @property
    def main_port(self) -> int:
        """The port rank 0 listens on."""
        return self.topology.coordinator_port

    @staticmethod
    def detect() -> bool:
        """Never picked by Lightning itself."""
        return False

    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    def set_world_size(self, size: int) -> None:
        """Lightning computes ranks per node times nodes, which is wrong for uneven jobs: ignored."""

    def global_rank(self) -> int:
        """Number of this rank."""
        return self.topology.rank

    def set_global_rank(self, rank: int) -> None:
        """Ignored, as `set_world_size`."""

    def local_rank(self) -> int:
        """Number of this rank on its node."""
        return self.topology.local_rank

    def node_rank(self) -> int:
        """Number of this node."""
        return self.topology.node_rank
