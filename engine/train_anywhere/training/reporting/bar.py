"""The progress bar on a terminal: bar, percent, epoch, time left and loss in one line, whatever the width."""

from collections.abc import Mapping, Sequence
from typing import Any

NAME_PARTS = ("train/", "train_")
"""Prefixes that the bar leaves out of the name of the training loss."""


class Bar:
    """A line at the bottom of the terminal, redrawn by the training thread itself.

    Args:
        total: batches of the whole run.
    """

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns: list[Any] = [
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[epoch]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            TextColumn("{task.fields[loss]}", markup=False),
        ]
        self.display = RichProgress(*columns, auto_refresh=False, expand=True)
        self.task = self.display.add_task("", total=total, epoch="starting", loss="")

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self.display.console.width

    def draw(self, batches: int, epoch: str, metrics: Mapping[str, float]) -> None:
        """Show the batches done of the whole run, and the training loss among the metrics."""
        loss = loss_of(metrics)
        self.display.update(self.task, completed=batches, epoch=epoch, loss=loss, refresh=True)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self.display.console.print(line, highlight=False, markup=False, soft_wrap=True)


def loss_of(metrics: Mapping[str, float]) -> str:
    """Return the first loss among the metrics, as `loss 0.1234`; empty if there is none."""
    for name, value in metrics.items():
        if "loss" in name:
            for part in NAME_PARTS:
                name = name.removeprefix(part)
            return f"{name} {value:.4g}"
    return ""


def fit(parts: Sequence[str], width: int) -> str:
    """Join parts of a line by two blanks; those at the end that do not fit into the width are left out."""
    line = "  ".join(parts)
    if len(line) <= width:
        return line
    shown = [*parts]
    while len(shown) > 1 and len("  ".join(shown)) + 3 > width:
        shown.pop()
    return f"{'  '.join(shown)}  …"[:width]
