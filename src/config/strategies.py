"""Which strategy works with which framework, how many nodes, and which way of starting the ranks: one table.

The schema refuses what the table does not hold, the documentation prints it, the tests walk it.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from src.config.schema import Config

FrameworkName = Literal["lightning", "keras"]
LaunchName = Literal["auto", "srun", "torchrun", "mpirun", "horovodrun"]
LAUNCHERS: tuple[str, ...] = typing.get_args(LaunchName)[1:]


@dataclass(frozen=True)
class Support:
    """What one strategy can do in one framework.

    Attributes:
        ranks: whether several ranks (processes) can share the work.
        several_nodes: whether they may be on several nodes.
        launch: which launch methods can start it inside a job.
        about: one line for people.
    """

    ranks: bool
    several_nodes: bool
    launch: tuple[str, ...]
    about: str


SUPPORTED: dict[str, dict[str, Support]] = {
    "lightning": {
        "single": Support(False, False, LAUNCHERS, "one process, one device"),
        "dp": Support(False, False, LAUNCHERS, "torch DataParallel: one process for all devices of a node"),
        "ddp": Support(True, True, LAUNCHERS[:3], "torch DistributedDataParallel: one process per device"),
        "fsdp": Support(
            True, True, LAUNCHERS[:3], "torch FSDP2: the same, and each keeps a part of the model only"
        ),
        "horovod": Support(True, True, LAUNCHERS, "Horovod's all-reduce: one process per device"),
    },
    "keras": {
        "single": Support(False, False, LAUNCHERS, "one process, one device"),
        "mirrored": Support(False, False, LAUNCHERS, "tf.distribute: one process for all devices of a node"),
        "multiworker_mirrored": Support(True, True, LAUNCHERS[:3], "tf.distribute: one process per device"),
        "horovod": Support(True, True, LAUNCHERS, "Horovod's all-reduce: one process per device"),
    },
}


def resolve_strategy(config: Config, devices: int, nodes: int) -> str:
    """What `strategy=auto` means: `single` for one device, else the framework's own data parallelism.

    Args:
        devices: over all nodes.
        nodes: nodes of the run.
    """
    if config.strategy.name != "auto":
        return config.strategy.name
    if devices == 1:
        return "single"
    if config.framework == "lightning":
        return "ddp"
    return "mirrored" if nodes == 1 else "multiworker_mirrored"


def problems(config: Config) -> list[str]:
    """One sentence for each contradiction of framework, strategy and number of devices."""
    table = SUPPORTED[config.framework]
    name, trainer = config.strategy.name, config.trainer
    if name == "auto":
        return []
    if name not in table:
        others = [f for f, cells in SUPPORTED.items() if name in cells]
        fix = f", or framework={others[0]}" if others else ""
        options = "|".join(["auto", *table])
        return [
            f"strategy={name} does not work with framework={config.framework}; use strategy={options}{fix}."
        ]
    several = "|".join(n for n, cell in table.items() if cell.several_nodes)
    if trainer.nodes > 1 and not table[name].several_nodes:
        return [f"strategy={name} is for one node and trainer.nodes={trainer.nodes}; use strategy={several}."]
    asked = trainer.total_devices or trainer.devices
    if name == "single" and asked not in ("auto", 1):
        return [f"strategy=single uses one device and {asked} are asked for; use strategy=auto|{several}."]
    return []


def table() -> str:
    """The matrix as Markdown."""
    lines = [
        "| framework | strategy | devices | nodes | `launch=` | what it is |",
        "|---|---|---|---|---|---|",
    ]
    for framework, cells in SUPPORTED.items():
        for name, cell in cells.items():
            devices = "one" if name == "single" else "several"
            nodes = "several" if cell.several_nodes else "one"
            launch = ", ".join(cell.launch) if cell.ranks else "any"
            lines.append(f"| {framework} | `{name}` | {devices} | {nodes} | {launch} | {cell.about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
