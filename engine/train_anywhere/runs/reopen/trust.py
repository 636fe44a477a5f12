"""Untrusted values in a run folder, and the record of what this user has run.

A run folder may come from anyone. A value that may run code, open a connection or a port, read the environment or name a folder to write
to is used only if this project's configuration or the command line has the same one, or if this user has run this configuration from the
same folder before. That is recorded in the user's state folder (https://specifications.freedesktop.org/basedir-spec).
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any

from train_anywhere.config.keys import LIST_GROUPS, SINGLE_GROUPS
from train_anywhere.config.load import FOLDERS
from train_anywhere.config.paths import expand, make_absolute
from train_anywhere.errors import ConfigError, SubmitError
from train_anywhere.files.atomic import open_file, try_read
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import resume_command

OF_TARGETS = ("cluster", "container", "program", "args", "init", *SINGLE_GROUPS)
"""Sections whose strings and switches may run code, start a download, or name an address or a folder to write to."""

SINGLE_KEYS = re.compile(
    r"train|trainer\.extra\..*|checkpoint\.local|monitor\.(dashboard|serve|serve_address)"
    r"|cluster\.(local_disk|cache|site\.(login|internet))"
)
"""Keys of other sections with such values, and those of `cluster` that a run on this machine uses."""

NOT_EVALUATED = (
    *LIST_GROUPS, "optimizer", "schedule", "checkpoint", "monitor", "init", "cluster", "container",
)  # fmt: skip
"""Sections that an evaluation does not use."""

CODE = re.compile(r"_target_|_check_|^monitor\.dashboard")
"""Matches `key value` of what names code, which is never accepted because it is not used."""

VARIABLE = re.compile(r"\$\{|(?<!\\)\$\w")
"""Matches a part of a value that is replaced by an environment variable."""

FROZEN = ("config.yaml", "overrides.txt")


def find_outward_values(flat: Mapping[str, Any], training: bool = True) -> list[str]:
    """Return the keys of a configuration whose values may run code, or affect or read anything outside the run folder.

    `flat` is a configuration as {'loggers.wandb.project': 'digits', ...}. Without `training`, an evaluation uses fewer sections.
    """
    found = []
    of_job = ("cluster", "container") if flat.get("cluster.scheduler") == "none" else ()
    for key, value in flat.items():
        group, _, name = key.partition(".")
        if group in LIST_GROUPS:  # null and false too: loggers.wandb.offline
            outward = bool(name or value)
        else:
            listed = (group in OF_TARGETS and group not in of_job) or SINGLE_KEYS.fullmatch(key)
            outward = bool(listed) and not _is_number(value)
        used = training or group not in NOT_EVALUATED or CODE.search(f"{key} {value}")
        if (outward and used) or (VARIABLE.search(f"{value}") and key != "note"):
            found.append(key)
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, list | Mapping):
        return all(map(_is_number, value.values() if isinstance(value, Mapping) else value))
    return value in (None, "") or (isinstance(value, int | float) and not isinstance(value, bool))


def refuse_untrusted(
    folder: Path, flat: Mapping[str, Any], known: Mapping[str, Any], training: bool = True
) -> None:
    """Refuse values that only the run folder has, unless this user has run it from there as it is, or types `trust=true`.

    `flat` is the configuration to run, and `known` what this project and the command line compose without the run folder. Raises
    ConfigError with one sentence for each value.
    """
    outward = find_outward_values(flat, training)
    found = [f"{k}={flat[k]!r}" for k in outward if not _same(k, flat[k], known.get(k))]
    if found and not is_own(folder):
        end = "which would run as you and is not in this project's configuration: read it, and add trust=true to run it."
        raise ConfigError(*(f"the run folder {folder} brings {value}, {end}" for value in found))


def _same(key: str, value: Any, known: Any) -> bool:
    """Return whether two values are equal. A folder may be given relative to the project."""
    if key in FOLDERS and not VARIABLE.search(f"{value}"):
        with suppress(ValueError, AttributeError, TypeError):  # no such user, not a string
            return make_absolute(expand(value)) == make_absolute(expand(known))
    return bool(value == known)


def remember(folder: Path) -> None:
    """Record that this user runs the configuration in a run folder, as it is now: `resume=` needs no trust=true."""
    record(folder, "run", [try_read(folder / name) for name in FROZEN])


def is_own(folder: Path) -> bool:
    """Return whether this user has run the configuration that is in a run folder now from there."""
    return is_recorded(folder, "run", [try_read(folder / name) for name in FROZEN])


def record(path: Path, key: str, value: object) -> None:
    """Record something that this user has done with a file or a run folder, such as the job submitted for it."""
    with suppress(OSError, RuntimeError):  # with a read-only home trust=true is needed each time
        if not is_recorded(path, key, value):
            state_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(state_folder() / "trusted", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(file, "a") as record:
                record.write(f"{_digest(path, key, value)}\n")


def is_recorded(path: Path, key: str, value: object) -> bool:
    """Return whether `record` was called with these arguments. False if other users can write its file."""
    with suppress(OSError, RuntimeError, ValueError):
        file = state_folder() / "trusted"
        status = file.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return _digest(path, key, value) in file.read_text().split()
    return False


def refuse_foreign_script(script: Path, trust: bool) -> None:
    """Raise SubmitError for a batch script that this user has not submitted, unless `trust`."""
    if not trust and not is_recorded(script, "script", _read_hex(script)):
        raise SubmitError(
            f"{script} is not a script that you have submitted from there, and it would run as you: read it, and add --trust "
            f"to submit it; or run today's code with `{resume_command(RunDir(script.parent), path='RUN')}`."
        )


def remember_script(script: Path) -> None:
    """Record that this user has submitted the script, with the code next to it."""
    record(script, "script", _read_hex(script))
    record(script.parent, "code", _read_code(script.parent))


def is_known_code(folder: Path) -> bool:
    """Return whether this user has submitted the code in a run folder, as it is now."""
    return is_recorded(folder, "code", _read_code(folder))


def _read_code(folder: Path) -> str:
    """Return a checksum of what Python can import from `folder`/code."""
    found = hashlib.sha256()
    for top, folders, files in os.walk(folder / "code"):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (Path(top, name) for name in sorted(files) if name.endswith((*all_suffixes(),))):
            found.update(os.fsencode(path.relative_to(folder)) + b"\0")
            with suppress(OSError), open_file(path, "rb") as file:  # of a link only the name
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def _read_hex(script: Path) -> str:
    try:
        return script.read_bytes().hex()
    except OSError as error:
        raise SubmitError(f"{script} can't be read: {error.strerror}.") from error


def _digest(path: Path, key: str, value: object) -> str:
    return hashlib.sha256(json.dumps([os.path.realpath(path), key, value]).encode()).hexdigest()


def state_folder() -> Path:
    """Return the folder for what belongs to this user. Raises RuntimeError without a home."""
    named = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(named) if named.startswith("/") else Path("~/.local/state").expanduser()
    return folder / "train-anywhere"
