"""The frameworks of this project."""

from train_anywhere.config.checks.strategy_table import SUPPORTED

FRAMEWORKS = tuple(SUPPORTED)
PREFIXES = {"torch": "lightning", "tf": "keras"}
"""Prefixes of the names of files that are for one framework."""
FIRST = FRAMEWORKS[0]
"""The default framework of a run."""
