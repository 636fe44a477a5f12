"""Read the runs of a timing table, finished or not, and show its figures."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import loads, read_text, write_atomic
from train_anywhere.files.root import resolve_as_typed
from train_anywhere.monitor.report.figures import Figure, figure
from train_anywhere.monitor.report.page import Comparison, render_comparison
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.slurm.scaling.grid import FILE, Cell, Table
from train_anywhere.slurm.status.find_runs import RunEntry, read_entry
from train_anywhere.slurm.status.gather import Report, gather
from train_anywhere.slurm.status.text_page import align_columns

TRAINING = ("step", "validation", "checkpoint")
"""Sections of a run that count as training; its start and its test do not."""


@dataclass(frozen=True)
class Row:
    """The results of one cell, as far as they are known.

    Attributes:
        state: state of the run; "not run" if there is none.
        seconds: from the first batch to the last, including validations and checkpoints.
        rate: training throughput over all devices in `unit` per second, without the first batches.
        speedup: the rate divided by that of the fewest devices of the same framework.
        efficiency: the speed-up divided by the factor of the number of devices.
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


def open_table(folder: Path) -> Table:
    """Open the table in a folder. Raises SubmitError if there is none."""
    try:
        content = loads(read_text(folder / FILE))
        cells = [Cell(**cell) for cell in content["cells"]]
        if any([*map(type, vars(cell).values())] != [int, int, str, str, str] for cell in cells):
            raise TypeError
        return Table(resolve_as_typed(folder), cells, str(content["scheduler"]))
    except (OSError, ValueError, TypeError, KeyError):
        raise SubmitError(
            f"{folder} contains no timing table (no readable {FILE}); name a folder like results/scaling/<id>."
        ) from None


def find_newest_runs(table: Table) -> dict[Cell, RunEntry]:
    """Return the newest run of each cell that has one."""
    found = {}
    for cell in table.cells:
        folders = sorted(path.parent for path in (table.folder / cell.name).glob("*/config.yaml"))
        if folders:
            found[cell] = read_entry(folders[-1])
    return found


def read_rows(table: Table) -> tuple[list[Row], list[str]]:
    """Return the rows, and messages about what could not be read."""
    known = find_newest_runs(table)
    gathered = gather([*known.values()])
    reports = dict(zip(known, gathered.reports, strict=True))
    return add_speedups([make_row(cell, reports.get(cell)) for cell in table.cells]), [*gathered.trouble]


def make_row(cell: Cell, report: Report | None) -> Row:
    """Return the results of one cell, without a comparison."""
    if report is None:
        return Row(cell, "not run")
    state = report.state or report.written
    if state != "completed":
        return Row(cell, state)
    progress, attempts = report.progress, RunDir(report.path).read_info().get(ATTEMPTS, [])
    known = [a["seconds"] for a in attempts if isinstance(a.get("seconds"), dict)]
    seconds = sum(float(s.get(name, 0.0)) for s in known for name in TRAINING) if known else None
    waiting = None if progress.efficiency is None else 1 - progress.efficiency
    return Row(cell, state, seconds, progress.rate, progress.unit, waiting=waiting)


def add_speedups(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with speed-up and efficiency."""
    first: dict[str, Row] = {}
    for measured in sorted((r for r in rows if r.rate), key=lambda r: r.cell.total):
        first.setdefault(measured.cell.framework, measured)
    found = []
    for row in rows:
        fewest = first.get(row.cell.framework)
        if row.rate and fewest and fewest.rate:
            speedup = row.rate / fewest.rate
            efficiency = speedup * fewest.cell.total / row.cell.total
            row = replace(row, speedup=speedup, efficiency=efficiency)
        found.append(row)
    return found


HEADER = ("nodes x devices", "framework", "strategy", "launch", "time", "rate", "speed-up", "efficiency", "waiting", "state")  # fmt: skip


def format_row(row: Row) -> list[str]:
    """Format the cells of a row."""
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


def to_text(rows: Sequence[Row]) -> str:
    """Format the table in columns."""
    return align_columns([HEADER, *map(format_row, rows)])


def to_csv(rows: Sequence[Row]) -> str:
    """Format the table for other programs: numbers without units, empty if not known."""
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
    """Plot speed-up over devices, with a curve for each method, and the ideal line."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for known in sorted((r for r in rows if r.speedup), key=lambda r: r.cell.total):
        cell, cells = known.cell, [known.cell]
        if cell.strategy == "single":  # one device is the first point of all curves of its framework
            others = (r.cell for r in rows if r.cell.framework == cell.framework)
            cells = [c for c in others if c.strategy != "single"]
        for name in dict.fromkeys(" ".join(c.method) for c in cells):
            curves.setdefault(name, []).append((cell.total, known.speedup or 0.0))
    drawn = {name: points for name, points in curves.items() if len(points) > 1}
    if not drawn:
        return []
    ends = sorted({x for points in drawn.values() for x, _ in points})
    drawn["linear"] = [(x, x / ends[0]) for x in (ends[0], ends[-1])]
    return [figure("speed-up", drawn, "devices", dots=True)]


def write_files(table: Table, rows: Sequence[Row]) -> list[Path]:
    """Write scaling.csv and scaling.html, and return their paths. Raises OSError."""
    page = Comparison(
        title=f"Scaling / {table.folder.name}",
        lead="The same training on different devices. Rate: training throughput without the first batches; speed-up: relative to "
        "the fewest devices of the same framework; waiting: share of a step in which ranks wait for each other.",
        header=HEADER,
        rows=[format_row(row) for row in rows],
        figures=plot(rows),
    )
    files = [table.folder / "scaling.csv", table.folder / "scaling.html"]
    write_atomic(files[0], to_csv(rows))
    write_atomic(files[1], render_comparison(page))
    return files
