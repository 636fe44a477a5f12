"""The progress bar on a terminal: bar, percent, epoch, time left and loss in one line, whatever the width."""

from collections.abc import Mapping
from typing import Any

NAME_PARTS = ("train/", "train_")
"""Prefixes that the bar leaves out of the name of the training loss."""

STYLES = {"bar.complete": "color(31)", "bar.finished": "color(28)", "progress.remaining": "default"}
"""Colors that can be read on black and on white."""


class Bar:
    """A line at the bottom of the terminal, redrawn by the training thread itself.

    Args:
        total: batches of the whole run.
    """

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.theme import Theme

        columns: list[Any] = [
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[epoch]}"),
            TextColumn("{task.fields[loss]}", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        ]
        console = Console(theme=Theme(STYLES))
        self.display = RichProgress(*columns, console=console, auto_refresh=False, expand=True)
        self.task = self.display.add_task("", total=total, epoch="starting", loss="")

    def set_total(self, total: int) -> None:
        """Set the batches of the whole run."""
        self.display.update(self.task, total=total)

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
