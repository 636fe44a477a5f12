"""Average runs that differ in one key, such as a seed, and draw a metric of runs: `jobs.py best --over seed`, `jobs.py plot`.

Figures are drawn with matplotlib, which is optional, for a paper or a talk.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import dumps
from train_anywhere.files.root import shell_folder
from train_anywhere.files.terminal.fit import terminal_width
from train_anywhere.files.terminal.table import Column, format_csv, format_table
from train_anywhere.monitor.report.figures import LARGEST
from train_anywhere.runs.facts import Series, curves, read_overrides
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.best import measure
from train_anywhere.slurm.status.find_runs import RunEntry


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


def differing_keys(found: Sequence[RunEntry], over: str | None = None) -> list[dict[str, str]]:
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
    """Return a table of the runs' best values, averaged over a key, in the form "", "csv" or "json"."""
    name, way, curves = measure(found, metric, mode)
    keys, groups = differing_keys(found, over), dict[tuple[str, ...], list[float]]()
    for run, values in zip(found, keys, strict=True):
        known = [value for _, value in curves.get(run.folder.path, []) if value == value]
        best = min(known, default=math.nan) if way == "min" else max(known, default=math.nan)
        groups.setdefault((*values.values(),), []).append(best)
    rows = [(group, average(values)) for group, values in groups.items()]
    rows.sort(key=lambda row: (row[1].runs == 0, row[1].mean if way == "min" else -row[1].mean))
    titles = [*keys[0], name, "spread", "runs"]
    if form == "json":
        return dumps([dict(zip(titles, (*group, *values), strict=True)) for group, values in rows])
    cells = [
        [*group, f"{y.mean:.6g}", f"{y.spread:.2g}" if y.runs > 1 else "-", str(y.runs)] for group, y in rows
    ]
    if form == "csv":
        return format_csv([titles, *cells]).rstrip("\n")
    columns = [Column(title, itemgetter(at - 3)) for at, title in enumerate(titles[-3:])]
    short = [key.rpartition(".")[2] for key in titles[:-3]]
    words: Column[list[str]] = Column(
        "differs", lambda row: "  ".join(f"{k}={v}" for k, v in zip(short, row, strict=False) if v)
    )
    return format_table(columns, cells, terminal_width(), words)


FORMATS = (".pdf", ".svg", ".png", ".eps", ".csv")
Points = dict[float, Average]
"""A curve: an average, perhaps of one run, at each step."""

SIZE, MOST_NAMED, LONGEST_NAME = (3.4, 2.4), 12, 40
"""Inches: a column of a paper; most curves with a legend, and most characters of a name in it: others would cover the figure."""


def plot(found: Sequence[RunEntry], metric: str, out: str, over: str | None = None) -> str:
    """Write the curves of a metric, one for each run or averaged over a key, and return the line to print.

    Raises SubmitError: no run has the metric, the format is unknown, matplotlib is missing, or the file exists.
    """
    path = shell_folder() / out
    values = path.suffix.lower() == ".csv"
    if path.suffix.lower() not in FORMATS:
        raise SubmitError(f"--out {out}: its format is not known; use one of {', '.join(FORMATS)}.")
    if not values and not find_spec("matplotlib"):
        raise SubmitError(
            "matplotlib is not installed: pip install matplotlib, or write the values: --out values.csv"
        )
    if path.exists() or not path.parent.is_dir():
        raise SubmitError(f"--out {out} exists already, or its folder does not exist; name another file.")
    keys, groups = differing_keys(found, over), dict[tuple[str, ...], list[Series]]()
    columns = [curves(run.folder.metrics_csv) for run in found]
    for run, typed, known in zip(found, keys, columns, strict=True):
        if metric in known:
            group = (*typed.values(), *([] if over else [run.folder.id]))
            groups.setdefault(group, []).append(known[metric])
    if not groups:
        names = sorted({name for known in columns for name in known})
        raise SubmitError(f"no run has the metric {metric}{did_you_mean(metric, names)}")
    lines = dict[tuple[str, ...], Points]()
    for group, series in groups.items():
        by_step = [dict(curve) for curve in series]
        steps = sorted({step for curve in by_step for step in curve})
        lines[group] = {step: average(c[step] for c in by_step if step in c) for step in steps}
    if values:
        titles = [*keys[0], *(["step", metric, "spread", "runs"] if over else ["run", "step", metric])]
        rows = [
            [*group, f"{step:g}", *(point if over else point[:1])]
            for group, points in lines.items()
            for step, point in points.items()
        ]
        path.write_text(format_csv([titles, *rows]))
    else:
        labels = {g: " ".join(f"{k}={v}" for k, v in zip(keys[0], g, strict=False) if v) for g in lines}
        if not over and len({*labels.values()} - {""}) < len(labels):
            labels = {group: group[-1] for group in lines}
        draw({labels[group]: points for group, points in lines.items()}, metric, path)
    averaged = f", averaged over {over}" if over else ""
    count = sum(map(len, groups.values()))
    return f"{display_path(path)}: {metric} of {count} of {len(found)} runs{averaged}"


def draw(lines: Mapping[str, Points], metric: str, path: Path) -> None:
    """Draw the curves with a band of their spread, and text that editors can change."""
    import matplotlib  # optional

    matplotlib.use("agg")
    text: dict[str, Any] = {
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "font.size": 8,
        "text.parse_math": False,
    }
    with matplotlib.rc_context(text):
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        for name, points in lines.items():
            dot = "." if len(points) == 1 else ""
            ys = [point.mean if abs(point.mean) < LARGEST else math.nan for point in points.values()]
            axes.plot([*points], ys, marker=dot, label=name[:LONGEST_NAME], linewidth=1)
            edges = [[p.mean + sign * p.spread for p in points.values()] for sign in (-1, 1)]
            axes.fill_between([*points], *edges, alpha=0.2, linewidth=0)
        axes.set(xlabel="step", ylabel=metric)
        if 1 < len(lines) <= MOST_NAMED:
            axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=300)
        pyplot.close(figure)
