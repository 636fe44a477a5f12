"""Which strategy works with which framework, how many nodes, and which way of starting the ranks: one table.

The schema refuses what the table does not hold, the documentation prints it, the tests walk it.
"""

import typing
from dataclasses import dataclass
from typing import Literal

FrameworkName = Literal["lightning", "keras"]
Launcher = Literal[
    "srun",
    "torchrun",
    "mpirun",
    "horovodrun",
]
LaunchName = Literal["auto", Launcher]
LAUNCHERS: tuple[str, ...] = typing.get_args(Launcher)
OF_RANKS = tuple(name for name in LAUNCHERS if name != "horovodrun")
"""Those that start any program: horovodrun starts Horovod's only."""


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
        "ddp": Support(True, True, OF_RANKS, "torch DistributedDataParallel: one process per device"),
        "fsdp": Support(
            True, True, OF_RANKS, "torch FSDP2: the same, and each keeps a part of the model only"
        ),
        "horovod": Support(True, True, LAUNCHERS, "Horovod's all-reduce: one process per device"),
    },
    "keras": {
        "single": Support(False, False, LAUNCHERS, "one process, one device"),
        "mirrored": Support(False, False, LAUNCHERS, "tf.distribute: one process for all devices of a node"),
        "multiworker_mirrored": Support(True, True, OF_RANKS, "tf.distribute: one process per device"),
        "horovod": Support(True, True, LAUNCHERS, "Horovod's all-reduce: one process per device"),
    },
}


SEVERAL = {
    "lightning": ("ddp", "ddp"),
    "keras": ("mirrored", "multiworker_mirrored"),
}
"""What `strategy=auto` means for several devices: of one node, of several."""


SHARDED: frozenset[str] = frozenset(
    [
        "fsdp",
    ]
)
"""Strategies whose checkpoints hold a part of the state from each rank."""


def resolve_strategy(framework: str, strategy: str, devices: int, nodes: int) -> str:
    """What `strategy=auto` means: `single` for one device, else the framework's own data parallelism.

    Args:
        strategy: `strategy.name`; any other than auto is the answer.
        devices: over all nodes.
        nodes: nodes of the run.
    """
    if strategy != "auto":
        return strategy
    if devices == 1:
        return "single"
    return SEVERAL[framework][nodes > 1]


def contradictions(framework: str, strategy: str, nodes: int, devices: int | Literal["auto"]) -> list[str]:
    """One sentence for each contradiction of framework, strategy and number of devices.

    Args:
        devices: `trainer.total_devices`, or `trainer.devices`.
    """
    table = SUPPORTED[framework]
    if strategy == "auto":
        return []
    if strategy not in table:
        others = [f for f, strategies in SUPPORTED.items() if strategy in strategies]
        fix = f", or framework={others[0]}" if others else ""
        options = "|".join(["auto", *table])
        return [f"strategy={strategy} does not work with framework={framework}; use strategy={options}{fix}."]
    several = "|".join(name for name, support in table.items() if support.several_nodes)
    if nodes > 1 and not table[strategy].several_nodes:
        return [
            f"strategy={strategy} works on one node only, but trainer.nodes={nodes}; use strategy={several}."
        ]
    if strategy == "single" and devices not in ("auto", 1):
        return [f"strategy=single uses one device, but {devices} are requested; use strategy=auto|{several}."]
    return []


def table() -> str:
    """The matrix as Markdown."""
    lines = [
        "| framework | strategy | devices | nodes | `launch=` | what it is |",
        "|---|---|---|---|---|---|",
    ]
    for framework, strategies in SUPPORTED.items():
        for name, support in strategies.items():
            devices = "one" if name == "single" else "several"
            nodes = "several" if support.several_nodes else "one"
            launch = ", ".join(support.launch) if support.ranks else "any"
            lines.append(f"| {framework} | `{name}` | {devices} | {nodes} | {launch} | {support.about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
