"""From a strategy's name to Lightning's strategy object."""

import torch
from lightning.fabric.utilities.distributed import _init_dist_connection
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import distributed
from torch.distributed.constants import default_pg_timeout

from src.config.schema import Config
from src.distributed.layout import running_strategy
from src.distributed.topology import Topology
from src.training.lightning.strategies.environment import TopologyEnvironment
from src.training.lightning.strategies.store import open_store


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

    def setup_distributed(self) -> None:
        """As Lightning's, but the ranks meet in a store of our own. The Trainer calls it again, at the start of each loop."""
        environment = self.cluster_environment
        assert isinstance(environment, TopologyEnvironment)
        reset_seed()
        self.set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        if distributed.is_initialized():
            return
        store = open_store(environment.topology, self._timeout or default_pg_timeout)
        _init_dist_connection(
            environment,
            self._process_group_backend,
            timeout=self._timeout,
            device_id=self.root_device if self.root_device.type != "cpu" else None,
            store=store,
        )

    def _configure_launcher(self) -> None:
        pass


def make_strategy(config: Config, topology: Topology, device: torch.device) -> Strategy:
    """The strategy of the configuration, for one rank; `device` is its own, or its first one."""
    return MAKERS[strategy_name(config, topology)](config, topology, device)


def _single(config: Config, topology: Topology, device: torch.device) -> Strategy:
    return SingleDeviceStrategy(device)


def _dp(config: Config, topology: Topology, device: torch.device) -> Strategy:
    from src.training.lightning.strategies.dp import DataParallel, devices_of

    return DataParallel(devices_of(device, device_count(config, topology)))


def _ddp(config: Config, topology: Topology, device: torch.device) -> Strategy:
    environment = TopologyEnvironment(topology)
    return OneDevicePerRank(
        parallel_devices=[device],
        cluster_environment=environment,
        gradient_as_bucket_view=True,  # gradients live in the buffers that are sent: one copy less
    )


def _fsdp(config: Config, topology: Topology, device: torch.device) -> Strategy:
    from src.training.lightning.strategies.fsdp import FullyShardedStrategy

    environment = TopologyEnvironment(topology)
    return FullyShardedStrategy(parallel_devices=[device], cluster_environment=environment)


def _horovod(config: Config, topology: Topology, device: torch.device) -> Strategy:
    from src.training.lightning.strategies.horovod import HorovodStrategy

    assert config.strategy.name == "horovod"
    return HorovodStrategy(topology, device, config.strategy.compression)


MAKERS = {"single": _single, "dp": _dp, "ddp": _ddp, "fsdp": _fsdp, "horovod": _horovod}
"""By the names of `src.config.strategies`."""


def strategy_name(config: Config, topology: Topology) -> str:
    """The strategy; `auto` is resolved by the number of ranks."""
    return running_strategy(config, topology)[0]


def device_count(config: Config, topology: Topology) -> int:
    """Devices that share the global batch: one per rank, but all of the node for the one process of `dp`."""
    return running_strategy(config, topology)[1]
