"""Draw one metric of several runs with matplotlib, which is optional, for a paper or a talk."""

import csv
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from train_anywhere.commands.over import Average, average, differing_keys
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.root import shell_folder
from train_anywhere.monitor.report.figures import LARGEST
from train_anywhere.runs.facts import Series, curves
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry

FORMATS = (".pdf", ".svg", ".png", ".eps", ".csv")
Points = dict[float, Average]
"""A curve: an average, perhaps of one run, at each step."""

SIZE = (3.4, 2.4)
"""Inches: a column of a paper."""

MOST_NAMED, LONGEST_NAME = 12, 40
"""Most curves with a legend, and most characters of a name in it: others would cover the figure."""


def plot(found: Sequence[RunEntry], metric: str, out: str, over: str | None = None) -> str:
    """Write the curves of a metric, one for each run or averaged over a key, and return the line to print.

    Raises:
        SubmitError: no run has the metric, the format is unknown, matplotlib is missing, or the file exists.
    """
    path = shell_folder() / out
    if path.suffix.lower() not in FORMATS:
        raise SubmitError(f"--out {out}: its format is not known; use one of {', '.join(FORMATS)}.")
    values = path.suffix.lower() == ".csv"
    if not values and not find_spec("matplotlib"):
        raise SubmitError(
            "matplotlib is not installed: pip install matplotlib, or write the values: --out values.csv"
        )
    if path.exists() or not path.parent.is_dir():
        raise SubmitError(f"--out {out} exists already, or its folder does not exist; name another file.")
    found = [*{run.folder: run for run in found}.values()]
    keys, groups = differing_keys(found, over), dict[tuple[str, ...], list[Series]]()
    columns = [curves(run.folder.metrics_csv) for run in found]
    for run, typed, known in zip(found, keys, columns, strict=True):
        if metric in known:
            group = (*typed.values(), *([] if over else [run.folder.id]))
            groups.setdefault(group, []).append(known[metric])
    if not groups:
        names = sorted({name for known in columns for name in known})
        raise SubmitError(f"no run has the metric {metric}{did_you_mean(metric, names)}")
    lines = {group: average_steps(series) for group, series in groups.items()}
    if values:
        titles = [*keys[0], *(["step", metric, "spread", "runs"] if over else ["run", "step", metric])]
        rows = [
            [*group, f"{step:g}", *(point if over else point[:1])]
            for group, points in lines.items()
            for step, point in points.items()
        ]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([titles, *rows])
    else:
        pairs = {group: zip(keys[0], group, strict=False) for group in lines}
        labels = {g: " ".join(f"{key}={value}" for key, value in pairs[g] if value) for g in lines}
        if not over and len({*labels.values()} - {""}) < len(labels):
            labels = {group: group[-1] for group in lines}
        draw({labels[group]: points for group, points in lines.items()}, metric, path)
    averaged = f", averaged over {over}" if over else ""
    count = sum(map(len, groups.values()))
    return f"{display_path(path)}: {metric} of {count} of {len(found)} runs{averaged}"


def average_steps(curves: Sequence[Series]) -> Points:
    """Return the average of several curves at each step that any of them has."""
    known = [dict(curve) for curve in curves]
    steps = sorted({step for curve in known for step in curve})
    return {step: average(curve[step] for curve in known if step in curve) for step in steps}


def draw(lines: Mapping[str, Points], metric: str, path: Path) -> None:
    """Draw the curves with a band of their spread, and text that editors can change."""
    import matplotlib  # optional

    matplotlib.use("agg")
    settings: dict[str, Any] = {
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "font.size": 8,
        "text.parse_math": False,
    }
    with matplotlib.rc_context(settings):
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
