"""Draw one metric of several runs with matplotlib, which is optional, for a paper or a talk."""

import csv
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import SubmitError
from train_anywhere.files.root import shell_folder
from train_anywhere.monitor.report.figures import LARGEST
from train_anywhere.runs.facts import Series, curves
from train_anywhere.runs.reopen.frozen import typed_overrides
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry

FORMATS = (".pdf", ".svg", ".png", ".eps", ".csv")
SIZE = (3.4, 2.4)
"""Inches: a column of a paper."""

MOST_NAMED, LONGEST_NAME = 12, 40
"""Most curves with a legend, and most characters of a name in it: others would cover the figure."""


def plot(found: Sequence[RunEntry], metric: str, out: str) -> str:
    """Write the curves of a metric, one for each run, and return the line to print.

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
    typed = {run.folder: {*(typed_overrides(run.folder) or ())} for run in found}
    known = {folder: curves(folder.metrics_csv) for folder in typed}
    common = set.intersection(*typed.values())
    labels = {folder: " ".join(sorted(words - common)) for folder, words in typed.items()}
    unique = len({*labels.values()} - {""}) == len(labels)  # the values that differ, else the ids
    lines = {labels[f] if unique else f.id: known[f][metric] for f in labels if metric in known[f]}
    if not lines:
        names = sorted({name for columns in known.values() for name in columns})
        raise SubmitError(f"no run has the metric {metric}{did_you_mean(metric, names)}")
    (write_values if values else draw)(lines, metric, path)
    return f"{display_path(path)}: {metric} of {len(lines)} of {len(labels)} runs"


def write_values(lines: dict[str, Series], metric: str, path: Path) -> None:
    """Write a row for each value."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "step", metric])
        writer.writerows(
            [name, f"{step:g}", value] for name, points in lines.items() for step, value in points
        )


def draw(lines: dict[str, Series], metric: str, path: Path) -> None:
    """Draw the curves, with text that editors can change."""
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
            xs, ys = [x for x, _ in points], [y if abs(y) < LARGEST else math.nan for _, y in points]
            axes.plot(xs, ys, marker=dot, label=name[:LONGEST_NAME], linewidth=1)
        axes.set(xlabel="step", ylabel=metric)
        if 1 < len(lines) <= MOST_NAMED:
            axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=300)
        pyplot.close(figure)
