"""One line at the end of pytest's output: the result of the bad inputs of all processes."""

from collections.abc import Iterable
from typing import Any

PROPERTY = "bad input"


def line(reports: Iterable[Any]) -> str:
    """Return the line. Empty if no bad input was tried.

    Args:
        reports: pytest's test reports.
    """
    found = [v for r in reports for k, v in getattr(r, "user_properties", ()) if k == PROPERTY]
    if not found:
        return ""
    slowest = max(found, key=lambda f: f["seconds"])
    counts = {"tracebacks": "traceback", "rows that wrote": "wrote"}
    said = ", ".join(f"{what}: {sum(f[key] for f in found)}" for what, key in counts.items())
    took = sum(f["seconds"] for f in found)
    return (
        f"bad inputs: {len(found)} rows in {took:.0f} s, {said}, "
        f"slowest: {slowest['row']} ({slowest['seconds']:.1f} s)"
    )
