"""The page of a sweep: a row for each member, and one drawing for each metric with the curves of all members."""

from collections.abc import Sequence
from pathlib import Path

from train_anywhere.files.atomic import write_atomic
from train_anywhere.monitor.report.comparison import Comparison, page_of
from train_anywhere.monitor.report.figures import drawable, figure
from train_anywhere.monitor.report.page import NAME
from train_anywhere.monitor.run_facts import Series, curves
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.status.find_runs import Submitted
from train_anywhere.slurm.status.run_status import Report, differing
from train_anywhere.slurm.status.sources.gather import gather, sweep_of
from train_anywhere.slurm.status.text_page import how_far

MOST_CURVES = 30
"""In one drawing: of a larger sweep, those of its first members."""


def write_sweep(found: Sequence[Submitted]) -> Path:
    """Write report.html into the folder of the sweep, which holds its script; returns it.

    Args:
        found: the members of one sweep.

    Raises:
        OSError: the folder takes no file.
    """
    sweep = sweep_of(found)
    assert sweep is not None
    reports = gather(found).reports
    path = found[0].folder.path.with_name(sweep) / NAME
    write_atomic(path, page_of(comparison(f"{path.parent.parent.name} / {sweep}", reports)))
    return path


def comparison(title: str, reports: Sequence[Report]) -> Comparison:
    """What the page shows."""
    keys = differing([*reports])
    metrics = [*dict.fromkeys(name for report in reports for name in shown(report))]
    return Comparison(
        title=title,
        lead=f"A sweep of {len(reports)} members; {sum(r.state == 'completed' for r in reports)} are completed.",
        header=["run", *keys, "state", "progress", *metrics],
        rows=[
            [
                report.id,
                *(report.overrides.get(key, "-") for key in keys),
                report.state or report.written,
                ", ".join(how_far(report)) or "-",
                *(text(report.progress.metrics.get(name)) for name in metrics),
            ]
            for report in reports
        ],
        figures=[
            figure(name, drawn, "optimizer step")
            for name, drawn in by_metric(reports, keys).items()
            if len(drawn) > 1 or len(reports) == 1
        ],
    )


def shown(report: Report) -> list[str]:
    """The metrics of a member that were measured by an evaluation."""
    return [name for name in report.progress.metrics if "train" not in name]


def by_metric(reports: Sequence[Report], keys: Sequence[str]) -> dict[str, dict[str, Series]]:
    """The curves of all members, those of losses first."""
    found: dict[str, dict[str, Series]] = {}
    for report in reports[:MOST_CURVES]:
        for name, points in curves(RunDir(report.path).metrics_csv).items():
            if len(known := drawable(points)) > 1:
                found.setdefault(name, {})[name_of(report, keys)] = known
    return {name: found[name] for name in sorted(found, key=lambda name: ("loss" not in name, name == "lr"))}


def name_of(report: Report, keys: Sequence[str]) -> str:
    """A member by what makes it differ."""
    number = report.id.rpartition("-")[2]
    return " ".join([number, *(f"{key}={report.overrides[key]}" for key in keys if key in report.overrides)])


def text(value: float | None) -> str:
    """A metric in the table."""
    return "-" if value is None else f"{value:.4g}"
