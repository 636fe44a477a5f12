"""The run folder: one run, one folder, whatever happens to the run; the package docstring lists what it holds."""

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import link_atomic, read_text
from train_anywhere.files.marked import Place, make
from train_anywhere.files.ordinary import write_or_overwrite
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.files.removal import remove, remove_link, say_once
from train_anywhere.files.typed_paths import as_typed
from train_anywhere.runs.run_info import is_info

ATTEMPTS = "parts"
"""Key of the attempts in run.json, see `runs/attempts.py`; the code that a run was submitted with may know no newer name."""

JOBS = "jobs.txt"
"""File of the run folder with the ids of the jobs that were submitted for it, one a line."""

SCRIPT_SAYS = {"preempted": "queued", "running": "failed"}
"""What the batch script may make of a state, see `RunDir.info`."""

SERVED = ("tensorboard", "dashboard")
"""Keys of run.json: where a server shows the run or its node, while it trains."""


class RunDir:
    """A run folder that exists.

    Attributes:
        path: absolute path of the folder.
        id: its name, such as 20261120-101502-a1b2.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.config = path / "config.yaml"
        self.overrides = path / "overrides.txt"
        self.info_file = path / "run.json"
        self.state_file = path / "state"
        self._state_text = ""  # of it, as this process has read or written it last
        self._unwritten: dict[str, Any] = {}  # fields of run.json that the disk has not taken
        self.jobs = path / JOBS
        self.metrics_csv = path / "metrics.csv"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.monitor = path / "monitor"
        self.debug = path / "debug"

    def served(self, kind: str) -> Path:
        """The file in which one of `SERVED` says where it is."""
        return self.monitor / f"{kind}.json"

    def info(self) -> dict[str, Any]:
        """The content of run.json; empty if there is none yet.

        A batch script reads and writes no JSON but the file `state`: the state, and the job of the newest attempt. Both
        files are written by `update`. Where they differ run.json counts, except for the two words that
        `slurm/templates/_state.sh.j2` may write on its own: `queued` instead of `preempted`, `failed` instead of `running`.

        Raises:
            CheckpointError: it is damaged or can't be read.
        """
        try:
            content = loads(read_text(self.info_file))
        except FileNotFoundError:
            return {**self._unwritten}
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.info_file} {_why(error)}; {REMEDY}") from error
        if not is_info(content, ATTEMPTS):
            raise CheckpointError(f"{self.info_file} is not what this project writes there; {REMEDY}")
        content |= self._unwritten
        said = self._state_of_script()
        if said and said == SCRIPT_SAYS.get(str(content.get("state"))):
            content["state"] = said
        return self._with_servers(content)

    def update(self, known: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Merge `fields` into run.json, and write the file `state`. Only one process at a time: rank 0, or the submission.

        Args:
            known: what `info` has just returned, which is then not read again.
        """
        with _writing:
            before = self.info() if known is None else known
            content = {**before, **fields}
            if content.get("state") != before.get("state"):
                content = self._with_servers(content)
            write_or_overwrite(self.info_file, dumps(content))
            self._unwritten = {}
            if "state" in content:
                job = (content.get(ATTEMPTS) or [{}])[-1].get("job") or ""
                line = f"{content['state']} {job}".rstrip() + "\n"
                if line != self._state_text:
                    write_or_overwrite(self.state_file, line)
                    self._state_text = line

    def note(self, known: Mapping[str, Any] | None = None, /, **fields: Any) -> bool:
        """`update` by a run that trains: what a disk refuses is kept, and written with the next call or by `catch_up`.

        Returns:
            Whether it is written; a line says why not.
        """
        with _writing:
            try:
                self.update(known, **fields)
                return True
            except OSError as error:
                self._unwritten |= fields
                say_once(
                    f"{error.filename or self.info_file} can't be written ({error.strerror or error}); it is written once it can be."
                )
                return False

    def catch_up(self) -> None:
        """Write what a disk has refused, if it takes it now."""
        if self._unwritten:
            with suppress(CheckpointError):
                self.note()

    def _with_servers(self, content: dict[str, Any]) -> dict[str, Any]:
        """Of a run that trains: where servers show it, by what features/serve/servers.py has written beside run.json."""
        for kind in SERVED:
            content.pop(kind, None)
            if content.get("state") != "running":
                continue
            with suppress(OSError, ValueError):
                served = loads(read_text(self.served(kind)))
                if served and isinstance(served, dict):
                    content[kind] = served
        return content

    def _state_of_script(self) -> str:
        """The first word of the file `state`; empty if it can't be read."""
        self._state_text = ""
        with suppress(OSError, ValueError):
            self._state_text = read_text(self.state_file)
        return next(iter(self._state_text.split()), "")


_writing = threading.RLock()
"""Held while a thread of this process writes run.json."""

REMEDY = "rename it to continue without the history that it holds."


def _why(error: Exception) -> str:
    """What is wrong with a file that could not be read; follows its name in a sentence."""
    if isinstance(error, OSError):
        return f"can't be read ({error.strerror or error})"
    return f"is damaged ({'not UTF-8' if isinstance(error, UnicodeDecodeError) else 'no JSON'})"


def create(results: Path, name: str) -> RunDir:
    """Make `results/<name>/<run id>` and point `results/latest` at it.

    Two runs that start in the same second get two folders: the id ends in random digits and mkdir is exclusive.

    Raises:
        CheckpointError: the folder can't be made.
    """
    try:
        (results / name).mkdir(parents=True, exist_ok=True)
        while True:
            path = results / name / new_id()
            try:
                path.mkdir()
                break
            except FileExistsError:
                continue
    except OSError as error:
        raise CheckpointError(_no_folder(results / name, error)) from error
    try:
        run = claim(path)
        point_latest(results, path)
    except OSError as error:
        discard(RunDir(path))
        raise CheckpointError(_no_folder(results / name, error)) from error
    return run


def new_id() -> str:
    """Such as 20261120-101502-a1b2: the time, and random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def _no_folder(folder: Path, error: OSError) -> str:
    """Why no run folder can be made below `folder`."""
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            return (
                f"no run folder can be made in {folder}: {path} is a link to {os.readlink(path)}, which does not exist; "
                "make that folder, or name another one with paths.results=..."
            )
    why = error.strerror or error
    return f"no run folder can be made in {folder} ({why}); name another one with paths.results=..."


def claim(path: Path) -> RunDir:
    """Make a run folder that `discard` may remove, unless it exists. Raises OSError."""
    make(_place(path))
    return RunDir(path)


def claim_code(code: Path) -> Place:
    """Make the folder of a snapshot, which may be removed again, in a run folder that exists. Raises OSError."""
    place = Place(code.parent, (code.name,), f"{code.name} of run {code.parent.name}")
    make(place)
    return place


def discard(run: RunDir) -> bool:
    """Remove a run folder whose job was refused; returns whether it is gone. If not, a line says why.

    A run that has had a job, or a checkpoint, stays.
    """
    for used in (run.jobs, run.checkpoints):
        if os.path.lexists(used):
            say_once(f"{run.path} is not removed: it has {used.name}.")
            return False
    return remove(_place(run.path))


def _place(path: Path) -> Place:
    return Place(path.parent, (path.name,), f"folder of run {path.name}")


def point_latest(results: Path, path: Path | None) -> None:
    """Point the symbolic link `results/latest` at `path`, in one step; None: remove it. Anything but a link stays."""
    latest = results / "latest"
    if path is None:
        remove_link(latest)
    elif not link_atomic(latest, os.path.relpath(path, results)):
        say_once(f"{latest} is not a link and stays as it is; the newest run is {path}.")


def open_run(path: str | Path) -> RunDir:
    """An existing run folder.

    Raises:
        CheckpointError: the path is not a run folder.
    """
    # pathlib fails for ~nobody and for circular links
    folder = as_typed(os.path.expanduser(path))
    if not os.path.isfile(folder / "config.yaml"):  # pathlib fails for names that are too long
        raise CheckpointError(
            f"{path} is not a run folder (it has no config.yaml); name one like {example(folder)}."
        )
    return RunDir(folder)


def example(folder: Path) -> str:
    """A run folder near `folder` to name in a message."""
    levels = ("*/config.yaml", "*/*/config.yaml")  # results/<name>/<run id>, seen from <name> or from results
    with suppress(OSError):  # a folder that may not be read, or that disappears
        near = sorted(p.parent for level in levels for p in folder.glob(level))
        if near:
            return str(near[-1])
    return "results/latest"


def now() -> str:
    """The time for run.json: ISO 8601, UTC, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
