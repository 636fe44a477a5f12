"""What a run shows: a progress bar on a terminal, or plain lines in a log."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from train_anywhere.files.terminal.fit import fit

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


class Bar:
    """A line at the bottom of the terminal, redrawn by the training thread itself.

    It has the bar, the percentage, the epoch, the time left and the loss.
    """

    def __init__(self, total: int) -> None:
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
        self.live = Progress(*columns, console=Console(theme=Theme(STYLES)), auto_refresh=False, expand=True)
        self.task = self.live.add_task("", total=total, epoch="starting", loss="")

    def draw(self, batches: int, epoch: str, metrics: Mapping[str, float]) -> None:
        """Show the batches done of the whole run, and the first loss among the metrics."""
        loss = ""
        if name := next((name for name in metrics if "loss" in name), ""):
            short = name.removeprefix("train/").removeprefix("train_")
            loss = f"{short} {metrics[name]:.4g}"
        self.live.update(self.task, completed=batches, epoch=epoch, loss=loss, refresh=True)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self.live.console.print(line, highlight=False, markup=False, soft_wrap=True)


class Display:
    """Display of rank 0. Other ranks use the kind `none`.

    Args:
        kind: auto: a bar if the output is a terminal, else plain lines.
    """

    def __init__(self, kind: Literal["auto", "bar", "plain", "none"], total: int) -> None:
        if kind == "auto":
            kind = "bar" if sys.stdout.isatty() else "plain"
        self.kind, self.bar = kind, Bar(total) if kind == "bar" else None
        self.metrics: dict[str, float] = {}
        self._fresh: dict[str, float] = {}  # measured since the last row
        self._recent: dict[str, float] = {}
        self._measured = self._shown = time.monotonic()

    def start_training(self, total: int) -> None:
        """Wait for metrics from now on. A user's module has its `total` only now."""
        self._measured = time.monotonic()
        if self.bar:
            self.bar.live.update(self.bar.task, total=total)

    def values(self) -> dict[str, float]:
        """Return the newest metrics, and the loss of this rank if it is newer."""
        return self.metrics | self._recent

    def row(self) -> dict[str, float]:
        """Return the values measured since the last row that was printed."""
        return self._fresh | self._recent

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Take new metrics."""
        self.metrics.update(metrics)
        self._fresh.update(metrics)

    def update(
        self, metrics: Mapping[str, float] | None, loss: Callable[[], float] | None, ends_epoch: bool
    ) -> bool:
        """Take the metrics, or for want of them the loss. Return whether to show them now."""
        now = time.monotonic()
        if metrics:
            first = not self.metrics and not ends_epoch
            self.measured(metrics)
            self._recent, self._measured = {}, now
        else:
            known = self.metrics or self._recent
            slow = loss and now - self._measured >= (LINE_EVERY_S if known else SLOW_S)
            first = bool(slow) and not known
            if loss and slow:
                self._recent, self._measured = {"loss": loss()}, now
        due = first or now - self._shown >= (DRAW_EVERY_S if self.bar else LINE_EVERY_S)
        self._shown = now if due else self._shown
        return due

    def show(self, batches: int, parts: Sequence[str]) -> None:
        """Show the batches done, and the parts of a line, of which the epoch is the first."""
        if self.bar:
            self.bar.draw(batches, parts[0], self._recent or self.metrics)
        elif self.kind == "plain":
            self._print_row(parts, LOG_WIDTH)

    def _print_row(self, parts: Sequence[str], width: int) -> None:
        """Print parts in rows of `width` columns, continued below the step."""
        line = fit("  ".join(parts), width, len(parts[0]) + 2)
        self.bar.print(line) if self.bar else print(line, flush=True)
        self._fresh = {}

    def end_epoch(self, parts: Sequence[str]) -> None:
        """Print the line of an epoch above the bar, in columns."""
        self._shown = time.monotonic()
        if self.bar:
            epoch, step, *rest = parts
            rest.sort(key=lambda part: not part.startswith("val"))
            columns = [p if p[0].isdecimal() else f"{p:<{p.index(' ') + 8}}" for p in rest]
            self._print_row([epoch, *columns, step], self.bar.live.console.width)

    def note(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self.bar:
            self.bar.print(fit(text, self.bar.live.console.width))
        elif self.kind == "plain":
            print(text, flush=True)
