"""Check all cells of a timing table, create its folder, and run the cells here or submit them."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.load import load
from train_anywhere.config.paths import escape_dollars
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.plain_json import dumps
from train_anywhere.runs.folder import new_run_id
from train_anywhere.slurm.scaling.grid import Cell, Grid

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
        cells: the cells, in order.
        scheduler: scheduler of the jobs; none means that the cells run on this machine.
    """

    folder: Path
    cells: list[Cell]
    scheduler: str


def quote_overrides(words: Sequence[str]) -> list[str]:
    """Return command line overrides in Hydra's syntax."""
    return [quote_value(word) for word in to_hydra_overrides(words)]


def compose_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Return the composed configuration of some overrides. Raises Hydra's errors."""
    return compose(quote_overrides(words))


def cell_overrides(cell: Cell, grid: Grid, batch: int | None) -> list[str]:
    """Return all overrides of one cell. `batch` is that of one device if the global batch grows with the devices, else None."""
    grown = [] if batch is None else [f"data.batch_size={batch * cell.total}"]
    return [*grid.overrides, *cell.overrides(), *grown, f"name={cell.name}"]


def load_all(grid: Grid, batch: int | None, check: Check, dry: bool) -> list[Config]:
    """Return the configuration of each cell. `batch` is as in `cell_overrides`; a `dry` run skips checks of this machine.

    Raises:
        ConfigError: the problems of all cells; one that all cells have is listed once.
    """
    found: dict[str, list[str]] = {}
    configs = []
    for cell in grid.cells:
        try:
            overrides = [*cell_overrides(cell, grid, batch), f"dry_run={str(dry).lower()}"]
            configs.append(load(compose_overrides(overrides), check))
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


def cell_command(table: Table, words: Sequence[str]) -> list[str]:
    """Return the command that trains or submits one cell."""
    results = f"paths.results={escape_dollars(str(table.folder))}"
    return [sys.executable, "-u", str(ROOT / "src" / "train.py"), *words, results]


def run_cell(table: Table, cell: Cell, words: Sequence[str]) -> int:
    """Train one cell, with its output in a file, and return the exit code."""
    (table.folder / cell.name).mkdir(exist_ok=True)
    with open(table.folder / cell.name / LOG, "w") as log:
        return subprocess.run(cell_command(table, words), stdout=log, stderr=subprocess.STDOUT).returncode


def submit_cell(table: Table, cell: Cell, words: Sequence[str]) -> str:
    """Submit one cell and return the first line of output.

    Raises:
        SubmitError: the submission failed, with its message.
    """
    done = subprocess.run(cell_command(table, words), capture_output=True, text=True)
    if done.returncode:
        why = done.stderr.strip().removeprefix("error: ")
        raise SubmitError(f"{cell.name} was not submitted: {why} ({shlex.join(words)})")
    return next(iter(done.stdout.strip().splitlines()), "")
