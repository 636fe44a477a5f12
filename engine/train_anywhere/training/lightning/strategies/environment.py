"""Lightning's cluster environment, from the ranks that `train_anywhere.distributed` has found, and the device of this rank."""

import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment

from train_anywhere.config.schema import Trainer
from train_anywhere.distributed.layout import no_gpu_message
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError


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


def pick_device(trainer: Trainer, topology: Topology) -> torch.device:
    """Return the device of this rank: its GPU, or the CPU.

    A scheduler may show each rank only its own GPU, or all GPUs of the node. In the second case the local rank is the GPU's number.

    Raises:
        ConfigError: the device is missing, or can't compute in the requested precision.
    """
    accelerator, gpus = trainer.accelerator, torch.cuda.device_count()
    if accelerator == "cpu" or (accelerator == "auto" and gpus == 0):
        if trainer.precision == "16-mixed":
            raise ConfigError(
                "trainer.precision=16-mixed needs a GPU, and this rank computes on the CPU; "
                "use trainer.precision=bf16-mixed."
            )
        return torch.device("cpu")
    if accelerator == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError(
                "trainer.accelerator=mps, but torch can't use the GPU of this Mac; use trainer.accelerator=cpu."
            )
        return torch.device("mps")
    if gpus == 0:
        raise ConfigError(no_gpu_message("torch"))
    index = 0 if gpus == 1 else topology.local_rank
    if index >= gpus:
        raise ConfigError(
            f"local rank {index} has no GPU: this node shows {gpus} and has "
            f"{topology.local_world_size} ranks; use trainer.devices={gpus}."
        )
    return torch.device("cuda", index)
