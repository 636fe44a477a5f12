"""The layout of a run over nodes, devices and ranks, resolved once when the run starts."""

from dataclasses import dataclass

from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED, Support, resolve_strategy
from train_anywhere.config.schema import Config
from train_anywhere.distributed.devices import visible_gpus
from train_anywhere.distributed.topology import Topology


@dataclass(frozen=True)
class Layout:
    """A strategy, and its devices and ranks on each node.

    Attributes:
        strategy: the name of the strategy; never auto.
        devices: GPUs (or CPU processes) on each node.
        ranks: processes on each node; fewer than devices if one process drives several.
    """

    strategy: str
    devices: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return sum(self.ranks)

    @property
    def device_count(self) -> int:
        """Devices over all nodes."""
        return sum(self.devices)


def make_layout(framework: str, strategy: str, devices: tuple[int, ...]) -> Layout:
    """Return the layout for the number of devices on each node; `strategy` may be auto."""
    strategy = resolve_strategy(framework, strategy, sum(devices), len(devices))
    several = support(framework, strategy).ranks
    return Layout(strategy, devices, devices if several else (1,) * len(devices))


def local_layout(config: Config) -> Layout:
    """Return the layout on this machine: `trainer.devices`, or with `auto` all GPUs, or one CPU process."""
    t = config.trainer
    devices = t.total_devices if isinstance(t.total_devices, int) else t.devices
    if devices == "auto":
        devices = 1 if t.accelerator in ("cpu", "mps") else max(1, visible_gpus())
    return make_layout(config.framework, config.strategy.name, (int(devices),))


def running_strategy(config: Config, topology: Topology) -> tuple[str, int]:
    """Return the strategy of a run whose ranks have started, and the number of devices that share the global batch.

    That is one device per rank, or all devices of this machine if a single rank drives them.
    """
    local = local_layout(config)
    if topology.world_size == local.world_size == 1:
        return local.strategy, local.device_count
    name = config.strategy.name
    return resolve_strategy(config.framework, name, topology.world_size, topology.nodes), topology.world_size


def support(framework: str, strategy: str) -> Support:
    """Return the abilities of a strategy; of an unknown one, which the schema refuses, all abilities."""
    return SUPPORTED[framework].get(strategy, Support(True, True, LAUNCHERS, ""))
