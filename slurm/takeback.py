"""A submission writes all or nothing: what a refused one has written is taken back."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from slurm.scheduler import SCRIPT, held_interrupt
from src.errors import SubmitError, UnclearError
from src.files import take, write_atomic
from src.removal import remove_file
from src.rundir import RunDir, discard, point_latest

WRITTEN = ("config.yaml", "overrides.txt", "run.json", "jobs.txt", *SCRIPT.values())
"""Files of a run folder that a submission writes."""


class Attempt:
    """`with Attempt(results, runs) as attempt:` around a submission; an error takes back what was written within.

    An `UnclearError` takes back nothing: a job that may be queued needs its run folder.

    Args:
        results: where run folders are.
        runs: those that exist already.

    Attributes:
        made: folders that the submission has made, to be appended as soon as they exist.
    """

    def __init__(self, results: Path, runs: Sequence[RunDir]) -> None:
        self.made: list[Path] = []
        self._link = results / "latest"
        self._latest = self._link.resolve() if self._link.is_symlink() else None
        self._before = {r.path / name: content(r.path / name) for r in runs for name in WRITTEN}
        self._infos = {r.info_file: self._before[r.info_file] for r in runs}

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
        """All is written and a job may start: what run.json holds from now on, if it changes, is the job's."""
        self._infos = {path: content(path) for path in self._infos}

    def _take_back(self) -> None:
        points_at = self._link.resolve() if self._link.is_symlink() else None
        for folder in self.made:
            if (
                jobs := folder / "jobs.txt"
            ).exists():  # none of them is queued any more: that would be an UnclearError
                remove_file(take(jobs))
            discard(RunDir(folder))
        for path, before in self._before.items():
            now = content(path)
            if now != before and now == self._infos.get(path, now):
                _restore(path, before)
        if points_at in self.made:
            point_latest(self._link.parent, self._latest)


def content(path: Path) -> bytes | None:
    """The bytes of a file; None where there is none.

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
