"""Read the intended differences from the page that documents them."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "concepts" / "own-code.md"
HEADING = "## Differences from the framework alone"


def read_rows(framework: str) -> dict[str, str]:
    """Return the condition of each row of a framework, by the row's name.

    A name stands in code font in the first column, and starts with the framework: `lightning-loggers`.
    """
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)`[^|]*\|([^|]*)\|([^|]*)\|$", section, re.MULTILINE)
    return {name: when.strip() for name, when, _ in rows if name.startswith(framework)}


def find_row(kind: str, ranks: int, intended: Mapping[str, Callable[[str, int], bool]]) -> str | None:
    """Return the name of the first row that covers a kind of difference, or None for a fault."""
    return next((name for name, covers in intended.items() if covers(kind, ranks)), None)
