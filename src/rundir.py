"""The run folder: one run, one folder, whatever happens to the run.

results/<name>/<run id>/   config.yaml  overrides.txt  run.json  metrics.csv  tensorboard/  checkpoints/
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from src.errors import CheckpointError
from src.plain_json import dumps

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the project."""


class RunDir:
    """A run folder that exists.

    Attributes:
        path: absolute path of the folder.
        id: its name, such as 20261120-101502-a1b2.
        steps_done: tells the optimizer steps done by the training that runs in it, from any thread; None before it begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.steps_done: Callable[[], int] | None = None
        self.config = path / "config.yaml"
        self.overrides = path / "overrides.txt"
        self.info_file = path / "run.json"
        self.metrics_csv = path / "metrics.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"

    def info(self) -> dict[str, Any]:
        """The content of run.json; empty where there is none yet."""
        try:
            return dict(json.loads(self.info_file.read_text()))
        except FileNotFoundError:
            return {}

    def update(self, **fields: Any) -> None:
        """Merge `fields` into run.json. Only one process (rank 0, or the submission) may do so at a time."""
        write_atomic(self.info_file, dumps({**self.info(), **fields}))


def create(results: Path, name: str) -> RunDir:
    """Make `results/<name>/<run id>` and point `results/latest` at it.

    Two runs that start in the same second get two folders: the id ends in random digits and mkdir is exclusive.
    """
    while True:
        path = results / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        point_latest(results, path)
        return RunDir(path)


def point_latest(results: Path, path: Path) -> None:
    """Make the symbolic link `results/latest` name `path`, in one step."""
    link = results / f".latest-{os.getpid()}-{os.urandom(2).hex()}"
    link.symlink_to(os.path.relpath(path, results))
    link.replace(results / "latest")


def open_run(path: str | Path) -> RunDir:
    """An existing run folder.

    Raises:
        CheckpointError: where the path is no run folder.
    """
    folder = Path(path).expanduser().resolve()
    if not (folder / "config.yaml").is_file():
        raise CheckpointError(
            f"{path} is no run folder (it has no config.yaml); name one like {example(folder)}."
        )
    return RunDir(folder)


def example(folder: Path) -> str:
    """A run folder near `folder` to name in a message."""
    levels = ("*/config.yaml", "*/*/config.yaml")  # results/<name>/<run id>, seen from <name> or from results
    with suppress(OSError):  # a folder that may not be read, or one that goes away
        near = sorted(p.parent for level in levels for p in folder.glob(level))
        if near:
            return str(near[-1])
    return "results/latest"


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old or the new text, never a part; it survives a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def now() -> str:
    """The time for run.json: ISO 8601, UTC, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
