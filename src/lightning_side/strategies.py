"""From a strategy's name to Lightning's strategy object."""

import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from src.lightning_side.environment import TopologyEnvironment
from src.matrix import resolve_strategy
from src.schema import Config
from src.topology import Topology


class OneDevicePerRank(DDPStrategy):
    """DistributedDataParallel over ranks that exist already and know one device each.

    Lightning's own computes ranks as node * devices + local rank, which is wrong for uneven jobs, indexes its
    devices by the local rank, and has a launcher that starts processes.
    """

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        assert self.parallel_devices
        return self.parallel_devices[0]

    def set_world_ranks(self) -> None:
        """The environment knows them; only Lightning's rank_zero_only has to be told."""
        rank_zero_only.rank = self.global_rank

    def _configure_launcher(self) -> None:
        pass


def make_strategy(config: Config, topology: Topology, device: torch.device) -> Strategy:
    """The strategy of the configuration; `auto` is resolved by the number of ranks."""
    match resolve_strategy(config, topology.world_size, topology.nodes):
        case "single":
            return SingleDeviceStrategy(device)
        case "ddp":
            return OneDevicePerRank(
                parallel_devices=[device],
                cluster_environment=TopologyEnvironment(topology),
                gradient_as_bucket_view=True,  # gradients live in the buffers that are sent: one copy less
            )
        case name:
            raise NotImplementedError(name)
