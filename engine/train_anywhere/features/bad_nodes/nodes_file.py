"""RUN/bad_nodes: nodes that the job does not want again. The batch script names them to Slurm when it goes back to the queue."""

from contextlib import suppress

from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.runs.folder import RunDir

FILE = "bad_nodes"
"""Of the run folder: one line, the nodes with commas between them."""


def read(run: RunDir) -> list[str]:
    """Those that are known; none where the file can't be read."""
    with suppress(OSError, ValueError):
        return [node for node in read_text(run.path / FILE).strip().split(",") if node]
    return []


def add(run: RunDir, node: str) -> None:
    """One more. Raises OSError."""
    known = read(run)
    if node not in known:
        write_atomic(run.path / FILE, ",".join([*known, node]) + "\n")
