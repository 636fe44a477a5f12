"""Make and check the cells of a timing table, and its folder."""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_anywhere.config.checks.strategy_table import LAUNCHERS, SUPPORTED
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.load import load
from train_anywhere.config.paths import escape_dollars
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import dumps, write_atomic
from train_anywhere.runs.folder import new_run_id

AXES = {
    "nodes": "trainer.nodes",
    "devices": "trainer.devices",
    "framework": "framework",
    "strategy": "strategy",
    "launch": "launch",
}
"""Arguments that can have several values, and their keys in the configuration."""

REFUSED = {
    "resume": "each cell is a new run",
    "trainer.total_devices": "the devices of a cell are nodes times devices",
    "name": "each cell gets its own name",
    "hydra/sweeper": "a table has one run of each cell",
}
"""Keys that can't be set for a table, with the reason."""


@dataclass(frozen=True)
class Cell:
    """One run of the table.

    Attributes:
        devices: devices on each node.
        launch: launch method of the ranks; auto if there is nothing to compare.
    """

    nodes: int
    devices: int
    framework: str
    strategy: str
    launch: str

    @property
    def total(self) -> int:
        """The number of devices over all nodes."""
        return self.nodes * self.devices

    @property
    def name(self) -> str:
        """The name of the job and the folder, such as `2x4-<framework>-horovod-srun`."""
        return "-".join([f"{self.nodes}x{self.devices}", *self.method])

    @property
    def method(self) -> list[str]:
        """Framework, strategy and launch method, which is left out if it is auto."""
        return [self.framework, self.strategy, *([] if self.launch == "auto" else [self.launch])]


@dataclass(frozen=True)
class Grid:
    """The cells of a requested table.

    Attributes:
        left_out: a message for each impossible combination.
        overrides: the other overrides, which all cells share.
    """

    cells: list[Cell]
    left_out: list[str]
    overrides: list[str]

    def words(self, cell: Cell, batch: int | None) -> list[str]:
        """Return a cell's overrides. `batch` is that of one device if it grows, else None."""
        own = [f"{key}={vars(cell)[axis]}" for axis, key in AXES.items()]
        grown = [] if batch is None else [f"data.batch_size={batch * cell.total}"]
        return [*self.overrides, *own, *grown, f"name={cell.name}"]


def split_overrides(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split overrides into values of the axes and others.

    Raises:
        ConfigError: there are invalid values; the error lists all problems.
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
    problems += unknown_values("framework", axes, [*SUPPORTED])
    problems += unknown_values("launch", axes, ["auto", *LAUNCHERS])
    problems += unknown_values(
        "strategy", axes, ["auto", *dict.fromkeys(s for f in SUPPORTED.values() for s in f)]
    )
    if not axes.keys() & {"nodes", "devices"}:
        problems.append("there is nothing to compare; give numbers of nodes or devices, such as devices=1,2.")
    if problems:
        raise ConfigError(*problems)
    return axes, others


def unknown_values(axis: str, axes: Mapping[str, Sequence[str]], known: Sequence[str]) -> list[str]:
    """Return a message for each value that does not exist."""
    return [
        f"{axis}={value} does not exist{did_you_mean(value, known)}"
        for value in axes.get(axis, ())
        if value not in known
    ]


def make_grid(words: Sequence[str], base: Mapping[str, Any]) -> Grid:
    """Make the cells of a table. `base` is the configuration without the axes.

    Raises:
        ConfigError: there are invalid values (the error lists all problems), or no combination is possible.
    """
    axes, others = split_overrides(words)
    trainer, here = base["trainer"], base["cluster"]["scheduler"] == "none"
    devices = "1" if trainer["devices"] == "auto" else str(trainer["devices"])
    frameworks = axes.get("framework")
    launches = axes.get("launch", [base["launch"]])
    if here and "launch" in axes:
        raise ConfigError(
            "launch= sets how a job starts its ranks, and these runs are not jobs: leave it out."
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
        result = make_cell(int(nodes), int(each), framework, strategy, launch)
        if isinstance(result, Cell):
            cells.append(result)
        else:
            left_out.append(result)
    if not cells:
        raise ConfigError(*dict.fromkeys(left_out))
    return Grid([*dict.fromkeys(cells)], [*dict.fromkeys(left_out)], others)


def framework_of(strategy: str, default: str) -> str:
    """Return the framework that has the strategy: the default one if it does."""
    having = [name for name, strategies in SUPPORTED.items() if strategy == "auto" or strategy in strategies]
    return default if default in having else having[0]


def make_cell(nodes: int, devices: int, framework: str, strategy: str, launch: str) -> Cell | str:
    """Return the cell of a combination, or why it is impossible. One device is `single`."""
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


FILE = "scaling.json"
"""File in the table's folder with its cells."""

LOG = "log.txt"
"""File in a cell's folder with its output, if the cell runs on this machine."""

Check = Callable[[Config], list[str]]
"""Returns the problems that prevent a configuration from running."""


@dataclass(frozen=True)
class Table:
    """A timing table with its folder.

    Attributes:
        folder: `results/scaling/<id>`; the runs of each cell are below a folder with the cell's name.
        scheduler: scheduler of the jobs; none means that the cells run on this machine.
    """

    folder: Path
    cells: list[Cell]
    scheduler: str

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that trains or submits the cell with these overrides."""
        results = f"paths.results={escape_dollars(str(self.folder))}"
        return [sys.executable, "-u", str(ROOT / "src" / "train.py"), *words, results]


def quote_overrides(words: Sequence[str]) -> list[str]:
    """Return command line overrides in Hydra's syntax."""
    return [quote_value(word) for word in to_hydra_overrides(words)]


def load_all(grid: Grid, batch: int | None, check: Check, dry: bool) -> list[Config]:
    """Return the configuration of each cell.

    `batch` is as in `Grid.words`. A `dry` run skips checks of this machine. Raises ConfigError: the problems of all cells; one that all
    cells have is listed once.
    """
    found: dict[str, list[str]] = {}
    configs = []
    for cell in grid.cells:
        try:
            words = [*grid.words(cell, batch), f"dry_run={str(dry).lower()}"]
            configs.append(load(compose(quote_overrides(words)), check))
        except ConfigError as error:
            for problem in error.problems:
                found.setdefault(problem, []).append(cell.name)
    if found:
        count = len(grid.cells)
        raise ConfigError(*(p if len(c) == count else f"{', '.join(c)}: {p}" for p, c in found.items()))
    return configs


def create_table(grid: Grid, results: Path, scheduler: str, words: Sequence[str]) -> Table:
    """Create the folder of a table.

    Raises:
        SubmitError: the folder can't be created.
    """
    folder = results / "scaling" / new_run_id()
    try:
        folder.mkdir(parents=True)
        content = {"cells": [asdict(cell) for cell in grid.cells], "scheduler": scheduler, "words": [*words]}
        write_atomic(folder / FILE, dumps(content))
    except OSError as error:
        raise SubmitError(
            f"{folder} can't be created ({error.strerror}); use paths.results=FOLDER."
        ) from error
    return Table(folder, grid.cells, scheduler)
