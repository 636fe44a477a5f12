"""Matches the long output of libraries when ranks fail, which a log must not have next to this project's message."""

import re

PAGES = re.compile(r"Traceback|ChildFailedError|c10d|frame #\d+")
