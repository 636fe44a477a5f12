"""A page that compares several runs: a table, and curves in one drawing each."""

from collections.abc import Sequence
from dataclasses import dataclass

from train_anywhere.monitor.report.figures import COLOURS, Figure
from train_anywhere.monitor.report.page import environment


@dataclass(frozen=True)
class Comparison:
    """What the page shows: `rows` are texts, one for each name in `header`."""

    title: str
    lead: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[Figure]


def page_of(shown: Comparison) -> str:
    """The page as HTML."""
    return environment().get_template("comparison.html.j2").render(page=shown, colours=COLOURS)
