"""Show reports until all runs have ended: updated in place on a terminal, else as a new line for each change."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from train_anywhere.files.terminal.printable import printable
from train_anywhere.slurm.status.sources.gather import RunReports
from train_anywhere.slurm.status.text_page import headline

EVERY_S = 5.0
"""Seconds between two updates; a scheduler should not be queried more often."""


def watch(
    look: Callable[[], RunReports], text: Callable[[RunReports], str], every: float = EVERY_S
) -> RunReports:
    """Show the runs until all have ended, and return their last reports. `look` is called every `every` seconds."""
    gathered = look()
    with _terminal() as screen:
        shown: dict[str, str] = {}
        while True:
            shown = _show(screen, gathered, text, shown)
            if not any(report.alive for report in gathered.reports):
                return gathered
            time.sleep(every)
            gathered = look()


def _terminal() -> AbstractContextManager[Any]:
    """Return a display that is updated in place; it enters as None if the output is not a terminal."""
    if not sys.stdout.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.live import Live

    terminal = getattr(
        sys.stdout, "stream", sys.stdout
    )  # below the filter that would drop rich's control characters
    return Live(console=Console(file=terminal), auto_refresh=False)


def _show(
    screen: Any, gathered: RunReports, text: Callable[[RunReports], str], shown: dict[str, str]
) -> dict[str, str]:
    """Show what has changed, and return the current line of each run."""
    lines = {report.id: headline(report) for report in gathered.reports}
    if screen is not None:
        from rich.text import Text

        page = Text.from_ansi(text(gathered))  # printable, apart from the colors of states
        rest = printable("\n".join(["", *gathered.notes, *gathered.trouble]))
        screen.update(page.append(rest), refresh=True)
        return lines
    for name, line in lines.items():
        if shown.get(name) != line:
            print(line, flush=True)
    return lines
