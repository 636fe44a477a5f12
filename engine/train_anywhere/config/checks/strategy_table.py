"""The table of strategies: framework, number of nodes and launch method of each.

The schema refuses what is not in the table, docs/concepts/strategies.md shows it, and the tests run all of it.
"""

import typing
from dataclasses import dataclass
from typing import Literal

FrameworkName = Literal["lightning", "keras"]
Launcher = Literal["srun", "torchrun", "mpirun", "horovodrun"]
LaunchName = Literal["auto", Launcher]
LAUNCHERS: tuple[str, ...] = typing.get_args(Launcher)
GENERIC_LAUNCHERS = tuple(name for name in LAUNCHERS if name != "horovodrun")
"""Launch methods that start any program; horovodrun starts programs with Horovod only."""


@dataclass(frozen=True)
class Support:
    """The abilities of one strategy in one framework.

    Attributes:
        several_nodes: whether several ranks (processes) can share the work, on one node or several.
        launch: which launch methods can start it inside a job.
    """

    several_nodes: bool
    launch: tuple[str, ...]
    about: str


SUPPORTED: dict[str, dict[str, Support]] = {
    "lightning": {
        "single": Support(False, LAUNCHERS, "one process, one device"),
        "ddp": Support(True, GENERIC_LAUNCHERS, "torch DistributedDataParallel: one process per device"),
        "fsdp": Support(True, GENERIC_LAUNCHERS, "torch FSDP2: the same, with the model split over the processes"),
        "horovod": Support(True, LAUNCHERS, "Horovod's all-reduce: one process per device"),
    },
    "keras": {
        "single": Support(False, LAUNCHERS, "one process, one device"),
        "mirrored": Support(False, LAUNCHERS, "tf.distribute: one process for all devices of a node"),
        "multiworker_mirrored": Support(True, GENERIC_LAUNCHERS, "tf.distribute: one process per device"),
        "horovod": Support(True, LAUNCHERS, "Horovod's all-reduce: one process per device"),
    },
}  # fmt: skip

AUTO_STRATEGIES = {"lightning": ("ddp", "ddp"), "keras": ("mirrored", "multiworker_mirrored")}
"""What `strategy=auto` means for several devices: on one node, on several nodes."""

SHARDED_STRATEGIES = frozenset({"fsdp"})
"""Strategies whose checkpoints consist of one part per rank."""


def resolve_strategy(framework: str, strategy: str, devices: int, nodes: int) -> str:
    """Return the strategy that `auto` stands for. Other names are returned as they are."""
    if strategy != "auto":
        return strategy
    if devices == 1:
        return "single"
    return AUTO_STRATEGIES[framework][nodes > 1]


def strategy_problems(framework: str, strategy: str, nodes: int, devices: int | Literal["auto"]) -> list[str]:
    """Return one sentence for each contradiction of framework, strategy and number of devices.

    `nodes` is their largest number, `devices` is `trainer.total_devices`, or `trainer.devices`.
    """
    supported = SUPPORTED[framework]
    if strategy == "auto":
        return []
    if strategy not in supported:
        others = [f for f, strategies in SUPPORTED.items() if strategy in strategies]
        fix = f", or framework={others[0]}" if others else ""
        options = "|".join(["auto", *supported])
        return [f"strategy={strategy} does not work with framework={framework}; use strategy={options}{fix}."]
    several = "|".join(name for name, support in supported.items() if support.several_nodes)
    if nodes > 1 and not supported[strategy].several_nodes:
        return [
            f"strategy={strategy} works on one node only, but trainer.nodes={nodes}; use strategy={several}."
        ]
    if strategy == "single" and devices not in ("auto", 1):
        return [f"strategy=single uses one device, but {devices} are requested; use strategy=auto|{several}."]
    return []
