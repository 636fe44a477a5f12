"""How a run is spread over nodes, devices and ranks: resolved once, when it starts."""

from dataclasses import dataclass

from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED, Support, resolve_strategy
from train_anywhere.config.schema import Config
from train_anywhere.distributed.devices import visible_gpus
from train_anywhere.distributed.topology import Topology


@dataclass(frozen=True)
class Layout:
    """A strategy, and what it works with.

    Attributes:
        strategy: its name; never auto.
        devices: GPUs (or CPU processes) on each node.
        ranks: processes on each node; fewer than devices where one drives several.
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


def lay_out(config: Config, devices: tuple[int, ...]) -> Layout:
    """The layout of a run.

    Args:
        devices: on each node.
    """
    strategy = resolve_strategy(config.framework, config.strategy.name, sum(devices), len(devices))
    several = support(config.framework, strategy).ranks
    return Layout(strategy, devices, devices if several else (1,) * len(devices))


def local_layout(config: Config) -> Layout:
    """On this machine: `trainer.devices`, or with `auto` all GPUs, or one CPU process."""
    t = config.trainer
    devices = t.total_devices if isinstance(t.total_devices, int) else t.devices
    if devices == "auto":
        return lay_out(config, (1 if t.accelerator in ("cpu", "mps") else max(1, visible_gpus()),))
    return lay_out(config, (devices,))


def running_strategy(config: Config, topology: Topology) -> tuple[str, int]:
    """Of a run whose ranks have started: its strategy, and how many devices share the global batch.

    That is one device per rank, or all devices of this machine where a single rank drives them.
    """
    here = local_layout(config)
    if topology.world_size == here.world_size == 1:
        return here.strategy, here.device_count
    name = config.strategy.name
    return resolve_strategy(config.framework, name, topology.world_size, topology.nodes), topology.world_size


def support(framework: str, strategy: str) -> Support:
    """What the strategy can do; the schema refuses one that the framework does not have, so here that may do anything."""
    return SUPPORTED[framework].get(strategy, Support(True, True, LAUNCHERS, ""))
