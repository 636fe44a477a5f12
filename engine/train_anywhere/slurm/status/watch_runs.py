"""Reports that are renewed until no run is alive: on a terminal in place, else as a line whenever one has changed."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from train_anywhere.files.terminal.printable import printable
from train_anywhere.slurm.status.sources.gather import Gathered
from train_anywhere.slurm.status.text_page import headline

EVERY_S = 5.0
"""Seconds between two looks; a scheduler should not be asked more often."""


def watch(look: Callable[[], Gathered], text: Callable[[Gathered], str], every: float = EVERY_S) -> Gathered:
    """Show the runs until all have ended; returns the last state of them.

    Args:
        look: gathers; called again and again.
        text: what a terminal shows.
        every: seconds in between.
    """
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
    """Text that is drawn over itself; None where the output is no terminal."""
    if not sys.stdout.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.live import Live

    terminal = getattr(sys.stdout, "stream", sys.stdout)  # what it does to draw over itself is not printable
    return Live(console=Console(file=terminal), auto_refresh=False)


def _show(
    screen: Any, gathered: Gathered, text: Callable[[Gathered], str], shown: dict[str, str]
) -> dict[str, str]:
    """Show what is new; returns the line of each run."""
    lines = {report.id: headline(report) for report in gathered.reports}
    if screen is not None:
        from rich.text import Text

        screen.update(
            Text(printable("\n".join([text(gathered), *gathered.notes, *gathered.trouble]))), refresh=True
        )
        return lines
    for name, line in lines.items():
        if shown.get(name) != line:
            print(line, flush=True)
    return lines
