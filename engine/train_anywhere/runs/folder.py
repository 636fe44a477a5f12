"""The run folder and run.json."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train_anywhere.config.paths import is_run_name
from train_anywhere.errors import CheckpointError
from train_anywhere.files import removal
from train_anywhere.files.atomic import dumps, link_atomic, loads, read_json, read_text, write_atomic
from train_anywhere.files.root import resolve_as_typed

Check = Callable[[object], bool]


def is_a(*kinds: type) -> Check:
    """Return a check that a value has one of these types; True is not a number."""
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


is_string, is_integer, is_number = is_a(str), is_a(int), is_a(int, float)


def is_string_list(value: object) -> bool:
    """Return whether a value is a list of strings."""
    return isinstance(value, list) and all(map(is_string, value))


INFO: dict[Check, str] = {
    is_integer: "world_size restarts epoch step",
    is_string: "state framework strategy launch cluster started ended checkpoint unit ended_by",
    is_string_list: "hosts job_ids",
    is_number: "rate",
    is_a(dict): "metrics",
}
"""The keys of run.json by the check of their values."""

ATTEMPT: dict[Check, str] = {
    is_integer: "step from_step devices",
    is_string: "started until allocated script_ended ended_by reason job",
    is_string_list: "hosts",
    lambda value: isinstance(value, dict) and all(map(is_number, value.values())): "seconds restart",
}
"""The same of each attempt."""


def fits(content: object, kinds: Mapping[Check, str]) -> bool:
    """Return whether `content` is a JSON object, and the value of each known key passes its check or is missing."""
    pairs = ((check, key) for check, keys in kinds.items() for key in keys.split())
    return isinstance(content, dict) and all(
        content.get(k) is None or check(content[k]) for check, k in pairs
    )


FORMAT = 2
"""Version of what a run folder holds, in run.json and in the manifest of each checkpoint."""

ATTEMPTS, JOBS = "attempts", "jobs.txt"
"""Key of the attempts in run.json, and file of the run folder with the ids of the jobs that were submitted for it, one per line."""


class RunDir:
    """An existing run folder; `id` is its name, such as 20261120-101502-a1b2."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.config = path / "config.yaml"
        self.overrides = path / "overrides.txt"
        self.info_file = path / "run.json"
        self._deferred: dict[str, Any] = {}  # fields of run.json that could not be written yet
        self.jobs = path / JOBS
        self.metrics_csv = path / "metrics.csv"
        self.log = path / "log.txt"  # of a run on this machine; a job has the scheduler's
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.monitor = path / "monitor"
        self.debug = path / "debug"

    def read_info(self) -> dict[str, Any]:
        """Return run.json, or {} if there is none. Raises CheckpointError if it is damaged."""
        try:
            text = read_text(self.info_file)
        except FileNotFoundError:
            return {**self._deferred}
        except OSError as error:
            why = f"can't be read ({error.strerror or error})"
            raise CheckpointError(f"{self.info_file} {why}; {REMEDY}") from error
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.info_file} is damaged (not UTF-8); {REMEDY}") from error
        return parse_info(text, self.path) | self._deferred

    def read_state(self) -> str | None:
        """Return the state in run.json. None if it has none, or is damaged, which the ranks report."""
        with suppress(CheckpointError):
            return self.read_info().get("state")
        return None

    def update(self, **fields: Any) -> None:
        """Merge `fields` into run.json.

        Only one process may call this at a time: rank 0, the submission, or the supervisor after the ranks.
        """
        with _writing:
            write_atomic(self.info_file, dumps({"format": FORMAT, **self.read_info(), **fields}))
            self._deferred = {}

    def update_or_defer(self, **fields: Any) -> bool:
        """Call `update`. If run.json can't be written, keep the fields and return False."""
        with _writing:
            try:
                self.update(**fields)
                return True
            except OSError as error:
                self._deferred |= fields
                file = error.filename or self.info_file
                why = error.strerror or error
                removal.print_once(f"{file} can't be written ({why}); trying again later.")
                return False

    def write_deferred(self) -> None:
        """Try again to write the fields that `update_or_defer` could not write."""
        if self._deferred:
            with suppress(CheckpointError):
                self.update_or_defer()


_writing = threading.RLock()
"""Lock for the threads of this process that write run.json."""

REMEDY = "rename it to continue without the history that it holds."
"""End of the messages about a damaged run.json."""


def parse_info(text: str, folder: Path | str) -> dict[str, Any]:
    """Return the content of the run.json in a folder. Raises CheckpointError if it is damaged."""
    try:
        content = loads(text)
    except ValueError as error:
        raise CheckpointError(f"{folder}/run.json is damaged (no JSON); {REMEDY}") from error
    listed = content.get(ATTEMPTS, []) if fits(content, INFO) else None
    if not isinstance(listed, list) or not all(fits(attempt, ATTEMPT) for attempt in listed):
        raise CheckpointError(f"{folder}/run.json is not what this project writes there; {REMEDY}")
    _refuse_other_format(folder, content)
    return dict(content)


def _refuse_other_format(folder: Path | str, info: Mapping[str, Any]) -> None:
    """Raise CheckpointError if run.json is from a version with other run folders."""
    found = info.get("format", None if "parts" in info else FORMAT)  # the attempts of older versions
    if found != FORMAT:
        raise CheckpointError(
            f"{folder} was written by another version of this project (run.json has format {found}, this version reads "
            f"{FORMAT}): use the version that wrote it, or start a new run."
        )


def create(results: Path, name: str, run_id: str | None = None) -> RunDir:
    """Make `results/<name>/<run id>` and point `results/latest` at it. Raises CheckpointError if the folder can't be made.

    Runs that start in the same second get different folders: a new id ends in random digits, and mkdir fails if the folder exists.
    """
    path = results / name / (run_id or new_run_id())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
                break
            except FileExistsError:
                if run_id:
                    raise
                path = path.with_name(new_run_id())
        try:
            run = claim(path)
            point_latest(results, path)
        except OSError:
            discard(RunDir(path))
            raise
    except OSError as error:
        why = error.strerror or error
        raise CheckpointError(
            f"no run folder can be made in {results / name} ({why}); name another one with paths.results=..."
        ) from error
    return run


@contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove the folder and its parents after an error, if they are empty and new."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        yield
    except BaseException:
        for path in made:
            removal.remove_empty(path)
        raise


def new_run_id() -> str:
    """Return a new run id, such as 20261120-101502-a1b2: the time and random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def claim(path: Path) -> RunDir:
    """Make a run folder that `discard` may remove. Raises OSError, also if the folder exists."""
    removal.make_owned(_place(path))
    return RunDir(path)


def claim_named(results: Path, name: str, run_id: str) -> RunDir:
    """Make or open the folder of a run whose name and id come from another machine, folder or archive.

    Only this function makes a path of such names. Raises CheckpointError: a run can't have these names, a link is on the way, or the
    folder exists and does not belong to this run.
    """
    if not (is_run_name(name) and is_run_name(run_id)):
        raise CheckpointError(
            f"{f'{name}/{run_id}'[:200]!a} can't be the folder of a run; nothing was copied."
        )
    place = removal.OwnedFolder(results, (name, run_id), f"folder of run {run_id}")
    try:
        removal.make_owned(place)
    except OSError as error:
        raise CheckpointError(
            f"{place.path} can't be the folder of this run ({error.strerror or error}); rename it, or name another folder: --results DIR."
        ) from error
    return RunDir(place.path)


def claim_sweep(member: RunDir) -> None:
    """Make the folder of a sweep for its report. A full disk is no reason not to train."""
    with suppress(OSError):
        claim(sweep_folder(member))


def sweep_folder(member: RunDir) -> Path:
    """Return the folder of a sweep, named like its members without their numbers."""
    return member.path.with_name(member.id.rpartition("-")[0])


def claim_part(folder: Path) -> removal.OwnedFolder:
    """Make a removable folder in an existing run folder. Raises OSError."""
    removal.make_owned(place := part_of_run(folder))
    return place


def part_of_run(folder: Path) -> removal.OwnedFolder:
    """Return a folder in a run folder as one that this project may remove."""
    return removal.OwnedFolder(folder.parent, (folder.name,), f"{folder.name} of run {folder.parent.name}")


def discard(run: RunDir) -> bool:
    """Remove a run folder whose job was refused, and return whether it is gone."""
    for used in (run.jobs, run.checkpoints):
        if os.path.lexists(used):
            removal.print_once(f"{run.path} is not removed: it has {used.name}.")
            return False
    return removal.remove(_place(run.path))


def delete(run: RunDir) -> bool:
    """Delete the folder of a run if it is this user's, and return whether it is gone."""
    return removal.remove(_place(run.path))


def finish_deletions(results: Path) -> None:
    """Remove what killed deletions have left of run folders below `results`."""
    for path in results.glob(f"*/{removal.hidden_name('*')}"):
        known = _place(path.with_name(path.name[1:].rpartition(".")[0]))
        removal.remove(replace(known, names=(path.name,)))


def _place(path: Path) -> removal.OwnedFolder:
    return removal.OwnedFolder(path.parent, (path.name,), f"folder of run {path.name}")


def point_latest(results: Path, path: Path | None) -> None:
    """Point the link `results/latest` at `path` atomically, or remove it. Others stay."""
    latest = results / "latest"
    if path is None:
        removal.remove_link(latest)
    elif not link_atomic(latest, os.path.relpath(path, results)):
        removal.print_once(f"{latest} is not a link and stays as it is; the newest run is {path}.")


def open_run(path: str | Path) -> RunDir:
    """Open an existing run folder. Raises CheckpointError: it is none, or one of another version of this project."""
    # pathlib raises for ~nobody and for circular links
    folder = resolve_as_typed(os.path.expanduser(path))
    if not os.access(folder, os.X_OK) and os.path.isdir(folder):
        raise CheckpointError(f"{path} can't be read (permission denied).")
    if not os.path.isfile(folder / "config.yaml"):  # pathlib raises for names that are too long
        raise CheckpointError(
            f"{path} is not a run folder (it has no config.yaml); name one like {example_run(folder)}."
        )
    _refuse_other_format(folder, read_json(folder / "run.json"))  # what reads run.json reports its damage
    return RunDir(folder)


def example_run(folder: Path) -> str:
    """Return the newest run folder below `folder`, or results/latest, for a message."""
    levels = ("*/config.yaml", "*/*/config.yaml")  # `folder` is results/<name> or results
    with suppress(OSError):  # a folder may be unreadable or just removed
        near = sorted(p.parent for level in levels for p in folder.glob(level))
        if near:
            return str(near[-1])
    return "results/latest"


def now() -> str:
    """Return the current time for run.json: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_waited_for(after: str | None, run: RunDir) -> bool:
    """Return whether a job with this `after` waits for the run.

    If so, only the job can check its checkpoints. Raises CheckpointError: run.json is damaged.
    """
    if after is None or Path(after).name not in (run.id, run.id.rpartition("-")[0]):
        return False
    return run.read_info().get("state") != "completed"
