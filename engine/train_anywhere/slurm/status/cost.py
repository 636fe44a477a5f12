"""The GPU hours and the energy of runs, by name and user, for `jobs.py list --cost`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from train_anywhere.errors import CheckpointError
from train_anywhere.files.terminal.table import Column, format_csv, format_table
from train_anywhere.monitor.run_facts import node_use
from train_anywhere.monitor.verdicts import goodput
from train_anywhere.runs.attempts import extend_newest
from train_anywhere.runs.facts import moment, number
from train_anywhere.runs.folder import RunDir


@dataclass(frozen=True)
class Cost:
    """The cost of some runs. `kwh` is the energy of their GPUs, None if none was sampled."""

    name: str
    user: str
    runs: int
    gpu_hours: float
    kwh: float | None


def read_cost(run: RunDir) -> Cost:
    """Return the cost of one run so far. Raises CheckpointError, OSError."""
    info = run.read_info()
    started, ended = moment(info.get("started")), moment(info.get("ended"))
    measured = goodput(extend_newest(run, info))
    seconds = measured.whole if measured else max(0.0, (ended or 0.0) - (started or 0.0)) if ended else 0.0
    gpus = number(info.get("gpus")) or 0.0
    nodes = [node for path in sorted(run.monitor.glob("*.csv")) if (node := node_use(path, False, None))]
    joules = [gpu.power.total * node.every for node in nodes for gpu in node.gpus if gpu.power]
    # of a GPU that several members of a sweep share, each has its part
    share = min(1.0, gpus / len(joules)) if joules else 1.0
    user = str(run.path.stat().st_uid)
    with suppress(KeyError):
        user = run.path.owner()
    return Cost(
        run.path.parent.name, user, 1, gpus * seconds / 3600, sum(joules) * share / 3.6e6 if joules else None
    )


def sum_costs(folders: Sequence[Path]) -> list[Cost]:
    """Return the costs by name and user, the most expensive first. Runs that can't be read are left out."""
    found: dict[tuple[str, str], list[Cost]] = {}
    for folder in folders:
        with suppress(CheckpointError, OSError):
            one = read_cost(RunDir(folder))
            found.setdefault((one.name, one.user), []).append(one)
    return sorted(map(add, found.values()), key=lambda cost: (-cost.gpu_hours, cost.name, cost.user))


def add(costs: Sequence[Cost]) -> Cost:
    """Return the sum of costs, with the name and user of the first."""
    known = [cost.kwh for cost in costs if cost.kwh is not None]
    hours, runs = sum(c.gpu_hours for c in costs), sum(c.runs for c in costs)
    return replace(costs[0], runs=runs, gpu_hours=hours, kwh=sum(known) if known else None)


def format_costs(costs: Sequence[Cost], width: int | None, as_csv: bool) -> str:
    """Return a table with a line for all, or a CSV file without it."""
    hours, energy, unknown = ("gpu_hours", "kwh", "") if as_csv else ("GPU hours", "kWh", "-")
    columns = [
        Column[Cost]("name", lambda c: c.name),
        Column[Cost]("user", lambda c: c.user),
        Column[Cost]("runs", lambda c: str(c.runs)),
        Column[Cost](hours, lambda c: f"{c.gpu_hours:.2f}"),
        Column[Cost](energy, lambda c: unknown if c.kwh is None else f"{c.kwh:.2f}"),
    ]
    if as_csv:
        rows = [[column.value(cost) for column in columns] for cost in costs]
        return format_csv([[column.title for column in columns], *rows]).rstrip("\n")
    whole = [replace(add(costs), name="all", user="")] if len(costs) > 1 else []
    return format_table(columns, [*costs, *whole], width)
