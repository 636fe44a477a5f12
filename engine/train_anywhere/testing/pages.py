"""What libraries print by the page when ranks end, and no log should have beside a sentence of ours."""

import re

PAGES = re.compile(r"Traceback|ChildFailedError|c10d|frame #\d+")
