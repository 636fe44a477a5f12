"""Which runs a timing table compares."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError

AXES = {
    "nodes": "trainer.nodes",
    "devices": "trainer.devices",
    "framework": "framework",
    "strategy": "strategy",
    "launch": "launch",
}
"""What can have several values, and the key of the configuration that it stands for."""

REFUSED = {
    "resume": "each cell is a run of its own",
    "trainer.total_devices": "the devices of a cell are nodes times devices",
    "name": "each cell has a name of its own",
    "hydra/sweeper": "a table has one run of each cell",
}
"""Keys that a table has no use for, and why."""


@dataclass(frozen=True)
class Cell:
    """One run of the table.

    Attributes:
        devices: on each node.
        launch: auto where nothing is compared by it.
    """

    nodes: int
    devices: int
    framework: str
    strategy: str
    launch: str

    @property
    def is_one(self) -> bool:
        """Whether its values are of the kinds that they must be; a file may hold others."""
        numbers, words = (self.nodes, self.devices), (self.framework, self.strategy, self.launch)
        return all(type(n) is int for n in numbers) and all(isinstance(word, str) for word in words)

    @property
    def total(self) -> int:
        """Devices over all nodes."""
        return self.nodes * self.devices

    @property
    def name(self) -> str:
        """`2x4-<framework>-horovod-srun`: the name of its job, and of its folder."""
        launch = [] if self.launch == "auto" else [self.launch]
        return "-".join([f"{self.nodes}x{self.devices}", self.framework, self.strategy, *launch])

    def words(self) -> list[str]:
        """The overrides that make this cell."""
        values = vars(self)
        return [f"{key}={values[axis]}" for axis, key in AXES.items()]


@dataclass(frozen=True)
class Grid:
    """A table that was asked for.

    Attributes:
        cells: each once.
        left_out: one sentence for each combination that can't be.
        words: the other overrides, the same for all cells.
    """

    cells: list[Cell]
    left_out: list[str]
    words: list[str]


def split(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """What was typed, as the values of the axes and the other overrides.

    Raises:
        ConfigError: with all problems.
    """
    axes: dict[str, list[str]] = {}
    others, problems = [], []
    for word in words:
        key, equals, value = word.partition("=")
        axis = next((a for a, long in AXES.items() if key in (a, long)), None)
        if key in REFUSED and equals:
            problems.append(f"{key}= can't be given for a timing table: {REFUSED[key]}.")
        elif axis is None:
            others.append(word)
        elif "" in (values := value.split(",")):
            problems.append(f"'{word}' has an empty value; use {axis}=A,B.")
            axes[axis] = []
        else:
            axes[axis] = list(dict.fromkeys(values))
    for axis in ("nodes", "devices"):
        problems += [
            f"{axis}={text} is not a number of {axis}; use {axis}=1,2."
            for text in axes.get(axis, ())
            if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) < 8)
        ]
    problems += unknown("framework", axes, [*SUPPORTED])
    problems += unknown("launch", axes, ["auto", *LAUNCHERS])
    problems += unknown("strategy", axes, ["auto", *dict.fromkeys(s for f in SUPPORTED.values() for s in f)])
    if not axes.keys() & {"nodes", "devices"}:
        problems.append("nothing says what is to be compared; name numbers of devices, such as devices=1,2.")
    if problems:
        raise ConfigError(*problems)
    return axes, others


def unknown(axis: str, axes: Mapping[str, Sequence[str]], known: Sequence[str]) -> list[str]:
    """One sentence for each value that does not exist."""
    return [
        f"{axis}={value} does not exist{did_you_mean(value, known)}"
        for value in axes.get(axis, ())
        if value not in known
    ]


def grid(words: Sequence[str], base: Mapping[str, Any]) -> Grid:
    """The cells of a table.

    Args:
        words: what was typed.
        base: the composed configuration without the axes: where nothing is typed, its value counts.

    Raises:
        ConfigError: with all problems, or nothing is left.
    """
    axes, others = split(words)
    trainer, here = base["trainer"], base["cluster"]["scheduler"] == "none"
    devices = "1" if trainer["devices"] == "auto" else str(trainer["devices"])
    frameworks = axes.get("framework")
    launches = axes.get("launch", [base["launch"]])
    if here and "launch" in axes:
        raise ConfigError(
            "launch= is how a job starts its ranks, and this is a run on this machine: leave it out."
        )
    cells: list[Cell] = []
    left_out: list[str] = []
    for nodes, each, strategy, launch, framework in itertools.product(
        axes.get("nodes", [str(trainer["nodes"])]),
        axes.get("devices", [devices]),
        axes.get("strategy", [base["strategy"]["name"]]),
        launches,
        frameworks or [base["framework"]],
    ):
        if not frameworks:
            framework = framework_of(strategy, framework)
        made = cell(int(nodes), int(each), framework, strategy, launch)
        if isinstance(made, Cell):
            cells.append(made)
        else:
            left_out.append(made)
    if not cells:
        raise ConfigError(*dict.fromkeys(left_out))
    return Grid([*dict.fromkeys(cells)], [*dict.fromkeys(left_out)], others)


def framework_of(strategy: str, default: str) -> str:
    """The framework that has the strategy: the default one if it does."""
    having = [name for name, strategies in SUPPORTED.items() if strategy == "auto" or strategy in strategies]
    return default if default in having else having[0]


def cell(nodes: int, devices: int, framework: str, strategy: str, launch: str) -> Cell | str:
    """One combination, or why it can't be. On one device all strategies are the same, and so are all launch methods of one process."""
    if nodes * devices == 1:
        return Cell(1, 1, framework, "single", "auto")
    if strategy == "auto":
        return Cell(nodes, devices, framework, strategy, launch)
    support = SUPPORTED[framework].get(strategy)
    if support is None:
        return f"strategy={strategy} is left out with framework={framework}, which does not have it."
    if strategy == "single":
        return f"strategy=single is left out on {nodes} x {devices} devices: it uses one."
    if nodes > 1 and not support.several_nodes:
        return f"strategy={strategy} is left out on {nodes} nodes: it works on one node only."
    if not support.ranks:
        return Cell(nodes, devices, framework, strategy, "auto")
    if launch not in ("auto", *support.launch):
        return f"launch={launch} is left out with strategy={strategy}: it can't start its ranks."
    return Cell(nodes, devices, framework, strategy, launch)
