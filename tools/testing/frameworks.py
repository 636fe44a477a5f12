"""The default framework of a run, and what the frameworks print."""

import re

from train_anywhere.testing.plugin import FRAMEWORKS

FIRST = FRAMEWORKS[0]
"""The default framework of a run."""

PAGES = re.compile(r"Traceback|ChildFailedError|c10d|frame #\d+")
