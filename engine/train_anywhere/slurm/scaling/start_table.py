"""Check all cells of a timing table, make its folder, and run them here or submit them."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_anywhere.config.command.command_line import opened
from train_anywhere.config.command.compose import compose, quoted
from train_anywhere.config.load import load
from train_anywhere.config.paths import unexpanded
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.plain_json import dumps
from train_anywhere.runs.folder import new_id
from train_anywhere.slurm.scaling.grid import Cell, Grid

FILE = "scaling.json"
"""What the table compares, in its folder."""

LOG = "log.txt"
"""Output of a cell that runs here, in the cell's folder."""

Check = Callable[[Config], list[str]]
"""What keeps one configuration from running, one sentence each."""


@dataclass(frozen=True)
class Table:
    """A timing table that was begun.

    Attributes:
        folder: `results/scaling/<id>`: the runs of each cell are below a folder of its name.
        cells: in their order.
        scheduler: of its jobs; none: it runs here.
    """

    folder: Path
    cells: list[Cell]
    scheduler: str


def as_hydra_reads(words: Sequence[str]) -> list[str]:
    """Overrides as they are typed, as Hydra reads them."""
    return [quoted(word) for word in opened(words)]


def compose_words(words: Sequence[str]) -> dict[str, Any]:
    """The composed configuration of some overrides. Raises what Hydra raises."""
    return compose(as_hydra_reads(words))


def words_of(cell: Cell, grid: Grid, batch: int | None) -> list[str]:
    """The overrides of one cell.

    Args:
        batch: of one device, where the global batch grows with them; None: it is the same for all.
    """
    grown = [] if batch is None else [f"data.batch_size={batch * cell.total}"]
    return [*grid.words, *cell.words(), *grown, f"name={cell.name}"]


def load_all(grid: Grid, batch: int | None, check: Check, dry: bool) -> list[Config]:
    """The configuration of each cell.

    Args:
        dry: nothing is to run; what another machine may refuse counts on that machine.

    Raises:
        ConfigError: the problems of all cells; one that all have is said once.
    """
    found: dict[str, list[str]] = {}
    configs = []
    for cell in grid.cells:
        try:
            configs.append(
                load(compose_words([*words_of(cell, grid, batch), f"dry_run={str(dry).lower()}"]), check)
            )
        except ConfigError as error:
            for problem in error.problems:
                found.setdefault(problem, []).append(cell.name)
    if found:
        raise ConfigError(
            *(
                p if len(cells) == len(grid.cells) else f"{', '.join(cells)}: {p}"
                for p, cells in found.items()
            )
        )
    return configs


def begin(grid: Grid, results: Path, scheduler: str, words: Sequence[str]) -> Table:
    """Make the folder.

    Raises:
        SubmitError: the disk refuses.
    """
    folder = results / "scaling" / new_id()
    try:
        folder.mkdir(parents=True)
        content = {"cells": [asdict(cell) for cell in grid.cells], "scheduler": scheduler, "words": [*words]}
        write_atomic(folder / FILE, dumps(content))
    except OSError as error:
        raise SubmitError(f"{folder} can't be made ({error.strerror}); use paths.results=FOLDER.") from error
    return Table(folder, grid.cells, scheduler)


def command(table: Table, words: Sequence[str]) -> list[str]:
    """What trains, or submits, one cell."""
    results = f"paths.results={unexpanded(str(table.folder))}"
    return [sys.executable, "-u", str(ROOT / "src" / "train.py"), *words, results]


def run_here(table: Table, cell: Cell, words: Sequence[str]) -> int:
    """Train one cell, with its output in a file; returns the exit code."""
    (table.folder / cell.name).mkdir(exist_ok=True)
    with open(table.folder / cell.name / LOG, "w") as log:
        return subprocess.run(command(table, words), stdout=log, stderr=subprocess.STDOUT).returncode


def submit(table: Table, cell: Cell, words: Sequence[str]) -> str:
    """Submit one cell; returns what the submission says first.

    Raises:
        SubmitError: with what it said instead.
    """
    done = subprocess.run(command(table, words), capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().removeprefix("error: ")
        raise SubmitError(f"{cell.name} was not submitted: {said} ({shlex.join(words)})")
    return next(iter(done.stdout.strip().splitlines()), "")
