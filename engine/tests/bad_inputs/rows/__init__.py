"""The table, by theme."""

import os

from engine.tests.bad_inputs.row import Row
from engine.tests.bad_inputs.rows import (
    after,
    clusters,
    commands,
    files,
    good,
    numbers,
    requests,
    resume,
    schedulers,
    searches,
    tables,
    targets,
    texts,
    together,
    words,
)

ROWS: list[Row] = [
    *words.ROWS, *numbers.ROWS, *together.ROWS, *clusters.ROWS, *files.ROWS, *resume.ROWS, *schedulers.ROWS, *targets.ROWS, *texts.ROWS, *after.ROWS, *tables.ROWS,
    *requests.ROWS, *searches.ROWS, *commands.ROWS,
    *good.ROWS
]  # fmt: skip
"""All of them."""

QUICK = [r for r in ROWS if r.limit <= 20][::15]
"""Every fifteenth one, of those that need no patience: what `make test` tries."""

TRIED = ROWS if os.environ.get("BAD_INPUTS") == "all" else QUICK
