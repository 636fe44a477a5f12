"""What a run shows: a progress bar on a terminal, or plain lines in a log."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from train_anywhere.files.terminal.fit import fit

if TYPE_CHECKING:
    from rich.progress import Progress

STYLES = {"bar.complete": "color(31)", "bar.finished": "color(28)", "progress.remaining": "default"}
"""Colors that can be read on black and on white."""

LINE_EVERY_S = 10.0
"""Seconds between plain lines within an epoch."""

SLOW_S = 2.0
"""Seconds after which a run without metrics shows the loss of this rank."""

LOG_WIDTH = 80
"""Columns of a row in a log."""

DRAW_EVERY_S = 0.25
"""Seconds between redraws of the bar."""


class Display:
    """Display of rank 0. Other ranks use the kind `none`.

    The bar is a line at the bottom of the terminal, redrawn by the training thread itself: percentage, epoch, loss and time left.

    Args:
        kind: auto: a bar if the output is a terminal, else plain lines.
        total: batches of the whole run.

    Attributes:
        bar: the bar of rich; None for another kind.
        metrics: the newest value of each metric.
        fresh: those measured since the last row.
        recent: the loss of this rank, if it is newer.
    """

    def __init__(self, kind: Literal["auto", "bar", "plain", "none"], total: int) -> None:
        if kind == "auto":
            kind = "bar" if sys.stdout.isatty() else "plain"
        self.kind, self.bar = kind, _make_bar(total) if kind == "bar" else None
        self.metrics: dict[str, float] = {}
        self.fresh: dict[str, float] = {}
        self.recent: dict[str, float] = {}
        self._measured = self._shown = time.monotonic()

    def start_training(self, total: int) -> None:
        """Wait for metrics from now on. A user's module has its `total` only now."""
        self._measured = time.monotonic()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], total=total)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Take new metrics."""
        self.metrics.update(metrics)
        self.fresh.update(metrics)

    def update(
        self, metrics: Mapping[str, float] | None, loss: Callable[[], float] | None, ends_epoch: bool
    ) -> bool:
        """Take the metrics, or for want of them the loss. Return whether to show them now."""
        now, known = time.monotonic(), self.metrics or self.recent
        if metrics:
            first = not self.metrics and not ends_epoch
            self.measured(metrics)
            self.recent, self._measured = {}, now
        else:
            slow = loss and now - self._measured >= (LINE_EVERY_S if known else SLOW_S)
            first = bool(slow) and not known
            if loss and slow:
                self.recent, self._measured = {"loss": loss()}, now
        due = first or now - self._shown >= (DRAW_EVERY_S if self.bar else LINE_EVERY_S)
        self._shown = now if due else self._shown
        return due

    def show(self, batches: int, parts: Sequence[str]) -> None:
        """Show the batches done, and the parts of a line, of which the epoch is the first."""
        if self.bar:
            metrics = self.recent or self.metrics
            name = next((name for name in metrics if "loss" in name), "")
            short = name.removeprefix("train/").removeprefix("train_")
            loss = f"{short} {metrics[name]:.4g}" if name else ""
            task = self.bar.task_ids[0]
            self.bar.update(task, completed=batches, epoch=parts[0], loss=loss, refresh=True)
        elif self.kind == "plain":
            self._print_row(parts, LOG_WIDTH)

    def end_epoch(self, parts: Sequence[str]) -> None:
        """Print the line of an epoch above the bar, in columns."""
        self._shown = time.monotonic()
        if self.bar:
            epoch, step, *rest = parts
            rest.sort(key=lambda part: not part.startswith("val"))
            columns = [p if p[0].isdecimal() else f"{p:<{p.index(' ') + 8}}" for p in rest]
            self._print_row([epoch, *columns, step], self.bar.console.width)

    def _print_row(self, parts: Sequence[str], width: int) -> None:
        """Print parts in rows of `width` columns, continued below the step."""
        self._print(fit("  ".join(parts), width, len(parts[0]) + 2))
        self.fresh = {}

    def note(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        self._print(fit(text, self.bar.console.width) if self.bar else text)

    def _print(self, text: str) -> None:
        if self.bar:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self.kind == "plain":
            print(text, flush=True)


def _make_bar(total: int) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.theme import Theme

    columns: list[Any] = [
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[epoch]}"),
        TextColumn("{task.fields[loss]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    ]
    bar = Progress(*columns, console=Console(theme=Theme(STYLES)), auto_refresh=False, expand=True)
    bar.add_task("", total=total, epoch="starting", loss="")
    return bar
