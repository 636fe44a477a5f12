"""The table, by theme."""

from tests.bad_inputs.row import Row
from tests.bad_inputs.rows import clusters, files, good, numbers, resume, schedulers, together, words

ROWS: list[Row] = [
    *words.ROWS, *numbers.ROWS, *together.ROWS, *clusters.ROWS, *files.ROWS, *resume.ROWS, *schedulers.ROWS, *good.ROWS
]  # fmt: skip
"""All of them."""
