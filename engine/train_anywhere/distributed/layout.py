"""The layout of a run over nodes, devices and ranks, and the GPUs of this machine."""

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from train_anywhere.config.checks.program import choose_processes
from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED, Support, resolve_strategy
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology


def visible_gpus(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> int:
    """Return the number of NVIDIA's device files, limited by CUDA_VISIBLE_DEVICES."""
    files = sum(bool(re.fullmatch(r"nvidia\d+", p.name)) for p in devices.iterdir())
    listed = cuda_visible_devices(environ)
    return files if listed is None else min(files, len(listed))


def usable_cpus() -> list[int]:
    """Return the CPUs that this process may run on, which are the job's."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def cuda_visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the numbers or UUIDs in CUDA_VISIBLE_DEVICES; None if it is not set."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    return [d.strip() for d in listed.split(",") if d.strip() not in ("", "-1", "NoDevFiles")]


SHARE = "TRAIN_SHARE"
"""Variable with the number of a member from 0, the number of members, and the CPUs of each: `2/8/4`."""


def take_share(environ: MutableMapping[str, str] = os.environ) -> None:
    """Keep this process to the CPUs and the GPU of its member, before a framework looks for them.

    The CPUs stay what they are if the process may use others than those of the members: the numbers of other jobs' are not known.
    """
    slot, members, each = map(int, environ.get(SHARE, "0/1/1").split("/"))
    if members == 1:
        return
    if hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) == members * each:
            os.sched_setaffinity(0, cpus[slot * each : (slot + 1) * each])
        elif members * each < len(cpus) <= 2 * members * each:  # two threads of each core
            os.sched_setaffinity(0, cpus[slot::members])
    gpus = cuda_visible_devices(environ) or [str(number) for number in range(visible_gpus(environ))]
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = gpus[slot * len(gpus) // members]


def no_gpu_message(seen_by: str) -> str:
    """Return the message for trainer.accelerator=gpu where `seen_by` sees no GPU."""
    return f"trainer.accelerator=gpu, but {seen_by} sees no GPU here; use trainer.accelerator=auto or cpu."


@dataclass(frozen=True)
class Layout:
    """The strategy of a run, with the numbers of devices and ranks on each node.

    Attributes:
        devices: number of GPUs (or CPU processes) on each node.
        ranks: number of processes on each node: one per device, or 1 if one process drives all devices of its node.
    """

    strategy: str
    devices: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks over all nodes."""
        return sum(self.ranks)

    @property
    def device_count(self) -> int:
        """Number of devices over all nodes."""
        return sum(self.devices)


def make_layout(framework: str, strategy: str, devices: tuple[int, ...]) -> Layout:
    """Return the layout for the numbers of devices of each node. `strategy` may be auto."""
    strategy = resolve_strategy(framework, strategy, sum(devices), len(devices))
    rank_per_device = support(framework, strategy).several_nodes
    return Layout(strategy, devices, devices if rank_per_device else (1,) * len(devices))


def plan_layout(config: Config, devices: tuple[int, ...]) -> Layout:
    """Return the layout of a run. A program may have one process for all devices of its node."""
    layout = make_layout(config.framework, config.strategy.name, devices)
    if not config.program:
        return layout
    processes = choose_processes(config, layout.device_count)
    each = layout.ranks if processes == "rank" else (1,) * len(devices)
    return replace(layout, strategy=processes, ranks=each)


def local_layout(config: Config) -> Layout:
    """Return the layout of a run on this machine.

    It uses `trainer.total_devices` if that is a number, else `trainer.devices`. `auto` means all visible GPUs, or one device
    without a GPU, or if `trainer.accelerator` is cpu or mps.
    """
    t = config.trainer
    devices = t.total_devices if isinstance(t.total_devices, int) else t.devices
    if devices == "auto":
        one = t.accelerator in ("cpu", "mps") or config.cluster.pack > 1
        devices = 1 if one else max(1, visible_gpus())
    return plan_layout(config, (int(devices),))


def running_strategy(config: Config, topology: Topology) -> tuple[str, int]:
    """Return the strategy of a started run, and the number of devices that share the batch."""
    local = local_layout(config)
    if topology.world_size == local.world_size == 1:
        return local.strategy, local.device_count
    name = config.strategy.name
    return resolve_strategy(config.framework, name, topology.world_size, topology.nodes), topology.world_size


def support(framework: str, strategy: str) -> Support:
    """Return what a strategy supports: everything if unknown, as that of a program is."""
    return SUPPORTED.get(framework, {}).get(strategy, Support(True, LAUNCHERS, ""))
