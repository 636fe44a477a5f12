"""A submission writes all or nothing: a refused one is rolled back."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from train_anywhere.errors import SubmitError, UnclearError
from train_anywhere.files.atomic import take, write_atomic
from train_anywhere.files.removal import remove_empty, remove_file
from train_anywhere.files.typed_paths import as_typed
from train_anywhere.runs.folder import JOBS, RunDir, discard, point_latest
from train_anywhere.slurm.scheduler.client import SCRIPT, held_interrupt

WRITTEN = ("config.yaml", "overrides.txt", "run.json", "state", JOBS, *SCRIPT.values())
"""Files of a run folder that a submission writes; `config.yaml.1` is what it kept of an earlier one."""


class Submission:
    """`with Submission(results, runs) as submission:` around a submission; an error removes what was written inside.

    After an `UnclearError` everything stays: a job that may be queued needs its run folder.

    Args:
        results: where run folders are.
        runs: the runs that exist already.

    Attributes:
        undo: functions that undo other changes, such as new folders; append each as soon as the change is made.
    """

    def __init__(self, results: Path, runs: Sequence[RunDir]) -> None:
        self.undo: list[Callable[[], object]] = []
        self._link, self._runs = results / "latest", runs
        self._latest = as_typed(self._link) if self._link.is_symlink() else None
        self._names = {p.name for p in results.iterdir()} if results.is_dir() else set()
        self._folders = [p for p in (results, *results.parents) if not p.exists()]
        self._before = {path: content(path) for path in self._written()}
        self._infos = {p: self._before.get(p) for r in runs for p in (r.info_file, r.state_file)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises SubmitError in place of an error of the file system."""
        if error is None or isinstance(error, UnclearError):
            return
        with held_interrupt("taking back what was written"):
            self._take_back()
        if isinstance(error, OSError):
            raise SubmitError(
                f"the run folder can't be written: {error.filename or ''}: {error.strerror}; nothing was submitted."
            ) from None

    def written(self) -> None:
        """Everything is written and a job may start: from now on a change of run.json is the job's and stays."""
        self._infos = {path: content(path) for path in self._infos}

    def new(self, run: RunDir) -> None:
        """A run folder was made."""
        self.undo.append(lambda: _discard(run))
        if run.path.parent.name not in self._names:
            self._folders.insert(0, run.path.parent)

    def _written(self) -> list[Path]:
        """Files of the existing run folders that a submission writes."""
        names = re.compile(rf"({'|'.join(map(re.escape, WRITTEN))})(\.\d+)?")
        return [path for run in self._runs for path in run.path.iterdir() if names.fullmatch(path.name)]

    def _take_back(self) -> None:
        for undo in reversed(self.undo):
            undo()
        for path in {*self._before, *self._written()}:
            before, now = self._before.get(path), content(path)
            if now != before and now == self._infos.get(path, now):
                _restore(path, before)
        if self._link.is_symlink() and not self._link.exists():
            point_latest(self._link.parent, self._latest)
        for folder in self._folders:
            remove_empty(folder)


def _discard(run: RunDir) -> None:
    """Remove a new run folder. No job of it is queued any more: that would be an `UnclearError`."""
    if run.jobs.exists():
        remove_file(take(run.jobs))
    discard(run)


def content(path: Path) -> bytes | None:
    """The bytes of a file; None if it does not exist.

    Raises:
        SubmitError: it can't be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SubmitError(f"{path} can't be read: {error.strerror}.") from None


def _restore(path: Path, before: bytes | None) -> None:
    if before is None:
        remove_file(take(path))
    else:
        write_atomic(path, before)
