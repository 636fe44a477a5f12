"""Roll back a failed submission, so that a submission writes all of its files or none."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from train_anywhere.errors import SubmitError, UnclearError
from train_anywhere.files.atomic import claim, write_atomic
from train_anywhere.files.removal import remove_empty, remove_file
from train_anywhere.files.root import resolve_as_typed
from train_anywhere.runs.folder import JOBS, RunDir, discard, point_latest
from train_anywhere.slurm.scheduler.client import SCRIPT, delay_interrupt

SUBMISSION_FILES = ("config.yaml", "overrides.txt", "run.json", JOBS, *SCRIPT.values())
"""Files that a submission writes to a run folder. It renames an earlier version, for example to `config.yaml.1`."""


class Submission:
    """A context manager around a submission, which removes its files after an error.

    After an `UnclearError` everything stays, because a job that may be queued needs its run folder.

    Args:
        runs: existing runs that are submitted again; empty if all runs are new.

    Attributes:
        undo: functions that undo other changes, such as new folders; append each one as soon as its change is made.
    """

    def __init__(self, results: Path, runs: Sequence[RunDir]) -> None:
        self.undo: list[Callable[[], object]] = []
        self._link, self._runs = results / "latest", runs
        self._latest = resolve_as_typed(self._link) if self._link.is_symlink() else None
        self._names = {p.name for p in results.iterdir()} if results.is_dir() else set()
        self._folders = [p for p in (results, *results.parents) if not p.exists()]
        self._before = {path: read_content(path) for path in self._submission_files()}
        self._job_files: dict[Path, bytes | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Roll back after an error, and raise an OSError as a SubmitError."""
        if error is None or isinstance(error, UnclearError):
            return
        with delay_interrupt(
            "Interrupted: removing the files of this submission; Ctrl-C again stops at once."
        ):
            self._roll_back()
        if isinstance(error, OSError):
            raise SubmitError(
                f"the run folder can't be written: {error.filename or ''}: {error.strerror}; nothing was submitted."
            ) from None

    def mark_written(self) -> None:
        """Record that all files are written. A rollback keeps later changes of run.json."""
        self._job_files = {run.info_file: read_content(run.info_file) for run in self._runs}

    def add_run(self, run: RunDir) -> None:
        """Register a new run folder, which a rollback removes."""

        def discard_run() -> None:
            """Remove the folder, none of whose jobs is queued."""
            if run.jobs.exists():
                remove_file(claim(run.jobs))
            discard(run)

        self.undo.append(discard_run)
        if run.path.parent.name not in self._names:
            self._folders.insert(0, run.path.parent)

    def _submission_files(self) -> list[Path]:
        """Return the files in the existing run folders that a submission writes or renames."""
        names = re.compile(rf"({'|'.join(map(re.escape, SUBMISSION_FILES))})(\.\d+)?")
        return [path for run in self._runs for path in run.path.iterdir() if names.fullmatch(path.name)]

    def _roll_back(self) -> None:
        for undo in reversed(self.undo):
            undo()
        paths = {*self._before, *self._submission_files()}
        # new files first: on a full disk, their removal makes room for the earlier content of the others
        for path in sorted(paths, key=lambda path: self._before.get(path) is not None):
            before, now = self._before.get(path), read_content(path)
            if now != before and now == self._job_files.get(path, now):
                if before is None:
                    remove_file(claim(path))
                else:
                    write_atomic(path, before)
        if self._link.is_symlink() and not self._link.exists():
            point_latest(self._link.parent, self._latest)
        for folder in self._folders:
            remove_empty(folder)


def read_content(path: Path) -> bytes | None:
    """Return the bytes of a file, None without it. Raises SubmitError if it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SubmitError(f"{path} can't be read: {error.strerror}.") from None
