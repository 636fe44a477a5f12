"""The frameworks of this project, and what they print."""

import re

from train_anywhere.config.checks.strategy_table import SUPPORTED

FRAMEWORKS = tuple(SUPPORTED)
PREFIXES = {"torch": "lightning", "tf": "keras"}
"""Prefixes of the names of files that are for one framework."""
FIRST = FRAMEWORKS[0]
"""The default framework of a run."""

PAGES = re.compile(r"Traceback|ChildFailedError|c10d|frame #\d+")

NOISE = re.compile(r".*(oneDNN custom operations|before absl::InitializeLog).*\n")


def without_noise(stderr: str) -> str:
    """Return stderr without these lines."""
    return NOISE.sub("", stderr)
