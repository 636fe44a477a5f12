"""Average runs that differ in one key, such as a seed: `jobs.py best --over seed`, `jobs.py plot --over seed`."""

import csv
import io
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import dumps
from train_anywhere.files.terminal.fit import terminal_width
from train_anywhere.files.terminal.table import Column, format_table
from train_anywhere.runs.facts import read_overrides
from train_anywhere.slurm.status.best import measure
from train_anywhere.slurm.status.find_runs import RunEntry

Keys = dict[str, str]


class Average(NamedTuple):
    """Mean, sample standard deviation (nan of one value) and number of values."""

    mean: float
    spread: float
    runs: int


def average(values: Iterable[float]) -> Average:
    """Return the average of the values that are not nan. Of none it is nan."""
    known = [value for value in values if value == value]
    spread = statistics.stdev(known) if len(known) > 1 else math.nan
    return Average(statistics.fmean(known) if known else math.nan, spread, len(known))


def differing_keys(found: Sequence[RunEntry], over: str | None = None) -> list[Keys]:
    """Return for each run the typed values of the keys that differ between the runs, without `over`.

    Raises SubmitError: none of the runs sets `over`.
    """
    typed = [read_overrides(run.folder) for run in found]
    keys = [*dict.fromkeys(key for one in typed for key in one)]
    if over and over not in keys:
        raise SubmitError(f"--over {over}: none of these runs sets this key{did_you_mean(over, keys)}")
    shown = [key for key in keys if key != over and len({one.get(key) for one in typed}) > 1]
    return [{key: one.get(key, "") for key in shown} for one in typed]


def summarize(
    found: Sequence[RunEntry], over: str, metric: str | None, mode: str | None, form: str = ""
) -> str:
    """Return a table of the runs' best values, averaged over a key, in the form "", "csv", "json" or "latex"."""
    name, way, curves = measure(found, metric, mode)
    keys, groups = differing_keys(found, over), dict[tuple[str, ...], list[float]]()
    for run, values in zip(found, keys, strict=True):
        known = [value for _, value in curves.get(run.folder.path, []) if value == value]
        best = min(known, default=math.nan) if way == "min" else max(known, default=math.nan)
        groups.setdefault((*values.values(),), []).append(best)
    rows = [(group, average(values)) for group, values in groups.items()]
    rows.sort(key=lambda row: (row[1].runs == 0, row[1].mean if way == "min" else -row[1].mean))
    titles = [*keys[0], name, "spread", "runs"]
    if form == "latex":
        return format_latex([*keys[0], name, "runs"], rows)
    if form == "json":
        return dumps([dict(zip(titles, (*group, *values), strict=True)) for group, values in rows])
    cells = [
        [*group, f"{y.mean:.6g}", f"{y.spread:.2g}" if y.runs > 1 else "-", str(y.runs)] for group, y in rows
    ]
    if form == "csv":
        csv.writer(text := io.StringIO(), lineterminator="\n").writerows([titles, *cells])
        return text.getvalue().rstrip("\n")
    columns = [Column(title, itemgetter(at - 3)) for at, title in enumerate(titles[-3:])]
    short = [key.rpartition(".")[2] for key in titles[:-3]]
    words: Column[list[str]] = Column(
        "differs", lambda row: "  ".join(f"{k}={v}" for k, v in zip(short, row, strict=False) if v)
    )
    return format_table(columns, cells, terminal_width(), words)


def format_latex(titles: Sequence[str], rows: Sequence[tuple[Sequence[str], Average]]) -> str:
    """Return a table for LaTeX with booktabs, as many decimals as two digits of the spread."""
    cells = [titles]
    for group, (mean, spread, runs) in rows:
        digits = max(0, 1 - math.floor(math.log10(spread))) if spread > 0 else 4
        error = rf" \pm {spread:.{digits}f}" if spread == spread else ""
        cells.append([*group, f"${mean:.{digits}f}{error}$", str(runs)])
    escaped = [[re.sub(r"[&%#_{}]", r"\\\g<0>", text) for text in row] for row in cells]
    head, *lines = [" & ".join(row) + r" \\" for row in escaped]
    start = [rf"\begin{{tabular}}{{{'l' * len(titles)}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*start, *lines, r"\bottomrule", r"\end{tabular}"])
