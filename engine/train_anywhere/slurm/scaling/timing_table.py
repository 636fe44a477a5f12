"""What a timing table shows: read from the runs, however far they are."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.plain_json import loads
from train_anywhere.files.typed_paths import as_typed
from train_anywhere.monitor.report.comparison import Comparison, page_of
from train_anywhere.monitor.report.figures import Figure, figure
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.scaling.grid import Cell
from train_anywhere.slurm.scaling.start_table import FILE, LOG, Table
from train_anywhere.slurm.status.find_runs import Submitted, submitted
from train_anywhere.slurm.status.run_status import OVER, Report
from train_anywhere.slurm.status.sources.gather import gather
from train_anywhere.slurm.status.text_page import columns

TRAINING = ("step", "validation", "checkpoint")
"""Sections of a run that are its training: not its start, not its test."""


@dataclass(frozen=True)
class Row:
    """One cell, as far as it has come.

    Attributes:
        state: of its run; "not run" where there is none.
        seconds: from its first batch to its last, validations and checkpoints included.
        rate: rows per second of training over all devices, in `unit`s, without the first batches.
        speedup: the rate beside that of the fewest devices of the same framework.
        efficiency: the speed-up beside that of the devices.
        waiting: share of a step in which ranks wait for each other.
    """

    cell: Cell
    state: str
    seconds: float | None = None
    rate: float | None = None
    unit: str = "samples"
    speedup: float | None = None
    efficiency: float | None = None
    waiting: float | None = None

    @property
    def over(self) -> bool:
        """Nothing more is to come."""
        return self.state in OVER or self.state == "not run"


def open_table(folder: Path) -> Table:
    """A table that was begun before.

    Raises:
        SubmitError: the folder holds none.
    """
    try:
        content = loads(read_text(folder / FILE))
        cells = [Cell(**cell) for cell in content["cells"]]
        if not all(cell.is_one for cell in cells):
            raise TypeError("values that no cell has")
        return Table(as_typed(folder), cells, str(content["scheduler"]))
    except (OSError, ValueError, TypeError, KeyError):
        raise SubmitError(
            f"{folder} holds no timing table (no readable {FILE}); name a folder like results/scaling/<id>."
        ) from None


def runs(table: Table) -> dict[Cell, Submitted]:
    """The newest run of each cell that has one."""
    found = {}
    for cell in table.cells:
        folders = sorted(path.parent for path in (table.folder / cell.name).glob("*/config.yaml"))
        if folders:
            found[cell] = submitted(folders[-1])
    return found


def read(table: Table) -> tuple[list[Row], list[str]]:
    """The rows, and what could not be learnt."""
    known = runs(table)
    gathered = gather([*known.values()])
    reports = dict(zip(known, gathered.reports, strict=True))
    return compared([row(cell, reports.get(cell)) for cell in table.cells]), [*gathered.trouble]


def row(cell: Cell, report: Report | None) -> Row:
    """A cell by itself."""
    if report is None:
        return Row(cell, "not run")
    state = report.state or report.written
    progress, seconds = report.progress, training_seconds(RunDir(report.path))
    waiting = None if progress.efficiency is None else 1 - progress.efficiency
    if state != "completed":
        return Row(cell, state)
    return Row(cell, state, seconds, progress.rate, progress.unit, waiting=waiting)


def training_seconds(run: RunDir) -> float | None:
    """Of all attempts; None where none has recorded its times."""
    found = [a.get("seconds") for a in run.info().get(ATTEMPTS, [])]
    known = [s for s in found if isinstance(s, dict)]
    return sum(float(s.get(name, 0.0)) for s in known for name in TRAINING) if known else None


def compared(rows: Sequence[Row]) -> list[Row]:
    """The same with speed-up and efficiency."""
    first: dict[str, Row] = {}
    for measured in sorted((r for r in rows if r.rate), key=lambda r: r.cell.total):
        first.setdefault(measured.cell.framework, measured)
    return [beside(r, first.get(r.cell.framework)) for r in rows]


def beside(row: Row, first: Row | None) -> Row:
    """A row compared with the one of the fewest devices."""
    if not (row.rate and first and first.rate):
        return row
    speedup = row.rate / first.rate
    efficiency = speedup * first.cell.total / row.cell.total
    return Row(**{**vars(row), "speedup": speedup, "efficiency": efficiency})


HEADER = (
    "nodes x devices",
    "framework",
    "strategy",
    "launch",
    "time",
    "rate",
    "speed-up",
    "efficiency",
    "waiting",
    "state",
)


def texts(row: Row) -> list[str]:
    """A row in words."""
    cell = row.cell
    return [
        f"{cell.nodes} x {cell.devices}",
        cell.framework,
        cell.strategy,
        "-" if cell.launch == "auto" else cell.launch,
        "-" if row.seconds is None else f"{row.seconds:.1f} s",
        "-" if row.rate is None else f"{row.rate:{'.0f' if row.rate >= 100 else '.3g'}} {row.unit}/s",
        "-" if row.speedup is None else f"{row.speedup:.2f}",
        *("-" if share is None else f"{share:.0%}" for share in (row.efficiency, row.waiting)),
        row.state,
    ]


def as_text(rows: Sequence[Row]) -> str:
    """The table in columns."""
    return columns([HEADER, *map(texts, rows)])


def as_csv(rows: Sequence[Row]) -> str:
    """The table for other programs: numbers without units, empty where they are not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("seconds", "rate", "unit", "speedup", "efficiency", "waiting", "state")
    writer.writerow(["nodes", "devices", "framework", "strategy", "launch", *names])
    for row in rows:
        values = [getattr(row, name) for name in names]
        numbers = [f"{v:.6g}" if isinstance(v, float) else "" if v is None else v for v in values]
        writer.writerow([*vars(row.cell).values(), *numbers])
    return text.getvalue()


def plot(rows: Sequence[Row]) -> list[Figure]:
    """Speed-up over devices, a curve for each framework, strategy and launch method, beside the ideal one."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for known in sorted((r for r in rows if r.speedup), key=lambda r: r.cell.total):
        cell = known.cell
        alone = cell.strategy == "single"
        names = (
            [r for r in rows if r.cell.framework == cell.framework and r.cell.strategy != "single"]
            if alone
            else [known]
        )
        for name in dict.fromkeys(curve_name(r.cell) for r in names):
            curves.setdefault(name, []).append((cell.total, known.speedup or 0.0))
    drawn = {name: points for name, points in curves.items() if len(points) > 1}
    if not drawn:
        return []
    ends = sorted({x for points in drawn.values() for x, _ in points})
    drawn["linear"] = [(x, x / ends[0]) for x in (ends[0], ends[-1])]
    return [figure("speed-up", drawn, "devices", dots=True)]


def curve_name(cell: Cell) -> str:
    """What a curve is of."""
    return " ".join([cell.framework, cell.strategy, *([] if cell.launch == "auto" else [cell.launch])])


def write(table: Table, rows: Sequence[Row]) -> list[Path]:
    """Write scaling.csv and scaling.html; returns them. Raises OSError: the disk refuses."""
    page = Comparison(
        title=f"Scaling / {table.folder.name}",
        lead="The same training on different devices. Rate: of the training, without its first batches; speed-up: beside "
        "the fewest devices of the same framework; waiting: share of a step in which ranks wait for each other.",
        header=HEADER,
        rows=[texts(row) for row in rows],
        figures=plot(rows),
    )
    files = [table.folder / "scaling.csv", table.folder / "scaling.html"]
    write_atomic(files[0], as_csv(rows))
    write_atomic(files[1], page_of(page))
    return files


def log(table: Table, cell: Cell) -> str:
    """Where the output of a cell is that ran here."""
    return display_path(table.folder / cell.name / LOG)
