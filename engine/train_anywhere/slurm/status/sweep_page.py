"""Write the page of a sweep: a row for each member, and a figure for each metric."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.errors import SubmitError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.monitor.report.figures import Figure, drawable, is_flat, metric_over_key
from train_anywhere.monitor.report.page import NAME, render_comparison
from train_anywhere.monitor.run_facts import MOST_CURVES
from train_anywhere.runs.facts import Series, curves
from train_anywhere.runs.folder import RunDir, sweep_folder
from train_anywhere.runs.summary import COLUMN, display_path
from train_anywhere.slurm.status.best import find_best
from train_anywhere.slurm.status.find_runs import RunEntry, read_entry
from train_anywhere.slurm.status.gather import Report, differing_keys, gather
from train_anywhere.slurm.status.text_page import has_colors, list_runs, progress_parts


def write_sweep(found: Sequence[RunEntry], reports: Sequence[Report] | None = None) -> Path:
    """Write report.html into the folder of the sweep, and return its path. Raises OSError."""
    folder = sweep_folder(found[0].folder)
    page = comparison(f"{folder.parent.name} / {folder.name}", reports or gather(found).reports)
    write_atomic(folder / NAME, render_comparison(page))
    return folder / NAME


def sweep_lines(found: Sequence[RunEntry]) -> str:
    """Return the table of a sweep, its best member, and where its report is.

    The sweep is done, so a part that fails is a line with its error.
    """
    shown, width = [""], terminal_width()
    try:
        reports = gather(found).reports
        shown.append(list_runs(reports, width, has_colors()))
        with suppress(SubmitError):  # no metric to compare
            best = find_best(found)
            values = {report.path: report.overrides for report in reports}.get(best.path, {})
            differing = [f"{key}={values[key]}" for key in differing_keys([*reports]) if key in values]
            row = "  ".join([f"{'Best:':<{COLUMN}}{best.metric} {best.value:.6g}", best.id, *differing])
            shown.append(fit(row, width))
        shown.append(fit(f"{'Report:':<{COLUMN}}{display_path(write_sweep(found, reports))}", width))
    except Exception as error:
        shown.append(f"The report was not written: {one_line(str(error))}")
    return "\n".join(shown)


def comparison(title: str, reports: Sequence[Report]) -> dict[str, Any]:
    """Return the content of the page, see `render_comparison`."""
    keys = differing_keys([*reports])
    best = None
    with suppress(SubmitError):  # no metric in common
        best = find_best([read_entry(report.path) for report in reports])
    names = dict.fromkeys(name for report in reports for name in report.progress.metrics)
    metrics = [name for name in names if "train" not in name and name != "lr"]
    best_metric = best.metric if best else ""
    over_keys = []  # the last value of the metric over each key that differs
    for key in (key for key in keys if best and not key.endswith("seed")):  # seeds are averaged
        known = [(r.overrides, r.progress.metrics.get(best_metric)) for r in reports]
        points = [(words[key], y) for words, y in known if key in words and y is not None]
        over_keys += [figure] if (figure := metric_over_key(best_metric, key, points)) else []

    def row(report: Report) -> list[str]:
        values = [report.progress.metrics.get(name) for name in metrics]
        numbers = ["-" if y is None else f"{y:.4g}" for y in values]
        progress = ", ".join(progress_parts(report)) or "-"
        words = [report.overrides.get(key, "-") for key in keys]
        return [report.id.rpartition("-")[2], *words, *numbers, report.state or report.written, progress]

    drawn = curves_by_metric(reports, keys)
    shown = [name for name in drawn if len(drawn[name]) > 1 or len(reports) == 1]
    return {
        "title": title,
        "lead": f"A sweep of {len(reports)} runs, {sum((r.state or r.written) == 'completed' for r in reports)} completed."
        + (f" Bold: the best {best.metric}." if best else ""),
        "header": ["run", *keys, *metrics, "state", "progress"],
        "rows": [row(report) for report in reports],
        "figures": [*over_keys, *(Figure(name, drawn[name], "optimizer step") for name in shown)],
        "links": [f"../{report.id}/{NAME}" if (report.path / NAME).is_file() else "" for report in reports],
        "best": next((n for n, report in enumerate(reports) if best and report.path == best.path), None),
    }


def curves_by_metric(reports: Sequence[Report], keys: Sequence[str]) -> dict[str, dict[str, Series]]:
    """Return the curves of all members by metric, losses first."""
    found: dict[str, dict[str, Series]] = {}
    for report in reports[:MOST_CURVES]:
        for name, points in curves(RunDir(report.path).metrics_csv).items():
            if len(known := drawable(points)) > 1 and not is_flat(name, points):
                number, words = report.id.rpartition("-")[2], report.overrides
                member = " ".join([number, *(f"{key}={words[key]}" for key in keys if key in words)])
                found.setdefault(name, {})[member] = known
    return {name: found[name] for name in sorted(found, key=lambda name: ("loss" not in name, name == "lr"))}
