"""RUN/bad_nodes: nodes that the job excludes. The batch script passes them to Slurm when the job is requeued."""

from contextlib import suppress

from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.runs.folder import RunDir

FILE = "bad_nodes"
"""File in the run folder: one line of node names, separated by commas."""


def read(run: RunDir) -> list[str]:
    """Return the nodes in the file; empty if it can't be read."""
    with suppress(OSError, ValueError):
        return [node for node in read_text(run.path / FILE).strip().split(",") if node]
    return []


def add(run: RunDir, node: str) -> None:
    """Add a node to the file. Raises OSError."""
    known = read(run)
    if node not in known:
        write_atomic(run.path / FILE, ",".join([*known, node]) + "\n")
