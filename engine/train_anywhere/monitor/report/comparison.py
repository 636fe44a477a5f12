"""HTML page that compares several runs: a table, and a figure for each metric."""

from collections.abc import Sequence
from dataclasses import dataclass

from train_anywhere.monitor.report.figures import Figure
from train_anywhere.monitor.report.page import environment


@dataclass(frozen=True)
class Comparison:
    """Content of the page.

    Attributes:
        rows: a string for each name in `header`.
        links: link of each row, relative to the page; empty for none.
        best: number of the row that is marked as the best.
    """

    title: str
    lead: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[Figure]
    links: Sequence[str] = ()
    best: int | None = None


def render_comparison(comparison: Comparison) -> str:
    """Return the page as HTML."""
    return environment().get_template("comparison.html.j2").render(page=comparison)
