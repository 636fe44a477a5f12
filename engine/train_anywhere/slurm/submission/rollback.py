"""Roll back a failed submission, so that a submission writes all of its files or none."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from train_anywhere.errors import SubmitError, UnclearError
from train_anywhere.files.atomic import claim, write_atomic
from train_anywhere.files.removal import remove_empty, remove_file
from train_anywhere.files.root import resolve_as_typed
from train_anywhere.runs.folder import JOBS, RunDir, discard, no_empty_folders, point_latest
from train_anywhere.slurm.scheduler.client import SCRIPT, delay_interrupt

SUBMISSION_FILES = ("config.yaml", "overrides.txt", "run.json", JOBS, *SCRIPT.values())
"""Files that a submission writes to a run folder. It renames an earlier version, for example to `config.yaml.1`."""


class Submission(ExitStack):
    """The callbacks that undo a submission: add each one as soon as its change is made."""

    def __init__(self, runs: Sequence[RunDir]) -> None:
        super().__init__()
        self._runs, self.written = runs, dict[Path, bytes | None]()

    def mark_written(self) -> None:
        """Record that all files are written. A rollback keeps later changes of run.json."""
        self.written = {run.info_file: read_content(run.info_file) for run in self._runs}

    def add_run(self, run: RunDir) -> None:
        """Register a new run folder, which a rollback removes."""

        def discard_run() -> None:
            """Remove the folder, none of whose jobs is queued."""
            if run.jobs.exists():
                remove_file(claim(run.jobs))
            discard(run)

        self.callback(remove_empty, run.path.parent)
        self.callback(discard_run)


@contextmanager
def all_or_nothing(results: Path, runs: Sequence[RunDir]) -> Iterator[Submission]:
    """Undo a submission after an error, except an `UnclearError`: a job that may be queued needs its run folder.

    `runs` are existing runs that are submitted again; empty if all runs are new. Raises an OSError as a SubmitError.
    """
    link, submission = results / "latest", Submission(runs)
    latest = resolve_as_typed(link) if link.is_symlink() else None
    before = {path: read_content(path) for path in _submission_files(runs)}
    with no_empty_folders(results):
        try:
            yield submission
        except UnclearError:
            raise
        except BaseException as error:
            with delay_interrupt(
                "Interrupted: removing the files of this submission; Ctrl-C again stops at once."
            ):
                submission.close()
                paths = {*before, *_submission_files(runs)}
                # new files first: on a full disk, their removal makes room for the earlier content of the others
                for path in sorted(paths, key=lambda path: before.get(path) is not None):
                    old, now = before.get(path), read_content(path)
                    if now != old and now == submission.written.get(path, now):
                        if old is None:
                            remove_file(claim(path))
                        else:
                            write_atomic(path, old)
                if link.is_symlink() and not link.exists():
                    point_latest(results, latest)
            if isinstance(error, OSError):
                raise SubmitError(
                    f"the run folder can't be written: {error.filename or ''}: {error.strerror}; nothing was submitted."
                ) from None
            raise


def _submission_files(runs: Sequence[RunDir]) -> list[Path]:
    """Return the files in the existing run folders that a submission writes or renames."""
    names = re.compile(rf"({'|'.join(map(re.escape, SUBMISSION_FILES))})(\.\d+)?")
    return [path for run in runs for path in run.path.iterdir() if names.fullmatch(path.name)]


def read_content(path: Path) -> bytes | None:
    """Return the bytes of a file, None without it. Raises SubmitError if it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SubmitError(f"{path} can't be read: {error.strerror}.") from None
