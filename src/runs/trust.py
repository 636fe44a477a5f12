"""Values in a run folder that run as code, and whether this user has allowed them before.

A run folder may come from anyone, so it is data: its `cluster.setup` runs only if this project's own configuration or the
command line has the same value, or if this user has submitted it from that same folder. The record of that is in the user's
own state folder (https://specifications.freedesktop.org/basedir-spec), never in a run folder.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from src.config.flat import flatten
from src.config.load import as_tree
from src.config.schema import Config
from src.errors import ConfigError, SubmitError

SHELL = ("cluster.setup", "cluster.modules", "cluster.conda", "cluster.venv", "cluster.extra")
"""Keys whose values become part of the batch script or of the options of the scheduler."""

COMMANDS = ("monitor.dashboard",)
"""Keys whose values are run beside the ranks, in a job or not."""


def code_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The values that run as code: lines of the batch script, the container, and everything that `_target_` names.

    Args:
        flat: a configuration as {'cluster.setup': [...], ...}.
    """
    submits, contained = flat.get("cluster.scheduler") != "none", flat.get("container.name") != "none"

    def runs(key: str, value: object) -> bool:
        if key in COMMANDS or "_target_" in f"{key} {value}" or key.endswith("._check_"):
            return True
        return submits and (key in SHELL or (contained and key.startswith("container.")))

    return {k: v for k, v in flat.items() if v and runs(k, v)}


def refuse_foreign(folder: Path, flat: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse code that comes from the run folder alone.

    Args:
        folder: of the run.
        flat: the configuration to run.
        known: the configuration that this project and the command line compose without the run folder.

    Raises:
        ConfigError: one sentence for each value; `trust=true` lets it run.
    """
    trusted = _trusted()
    foreign = {
        k: v for k, v in code_of(flat).items() if known.get(k) != v and _digest(folder, k, v) not in trusted
    }
    if foreign:
        raise ConfigError(
            *[
                f"the run folder {folder} brings {k}={v!r}, which would run as you and is not in this project's configuration: "
                "read it, and add trust=true to run it."
                for k, v in foreign.items()
            ]
        )


def remember(folder: Path, config: Config) -> None:
    """Record that this user allows the configuration to run from this folder: `resume=` need not ask again."""
    _add(_digest(folder, k, v) for k, v in code_of(flatten(as_tree(config))).items())


def refuse_foreign_script(script: Path, trust: bool) -> None:
    """Refuse a batch script that this user has not submitted from its folder.

    Raises:
        SubmitError: `--trust` lets it run.
    """
    if not trust and _digest(script, "script", _text(script)) not in _trusted():
        raise SubmitError(
            f"{script} is not a script that you have submitted from there, and it would run as you: read it, and add --trust "
            "to submit it; or run today's code with `python src/train.py resume=RUN`."
        )


def remember_script(script: Path) -> None:
    """Record that this user submits the script."""
    _add([_digest(script, "script", _text(script))])


def _text(script: Path) -> str:
    try:
        return script.read_bytes().hex()
    except OSError as error:
        raise SubmitError(f"{script} can't be read: {error.strerror}.") from error


def _digest(path: Path, key: str, value: object) -> str:
    return hashlib.sha256(json.dumps([str(path.resolve()), key, value]).encode()).hexdigest()


def _record() -> Path:
    """The file with one digest per line of everything allowed. Raises RuntimeError for a user without a home."""
    named = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(named) if named.startswith("/") else Path("~/.local/state").expanduser()
    return folder / "train-anywhere" / "trusted"


def _trusted() -> set[str]:
    """The digests in the record; empty if it can't be read or others could have written it: then the user is asked."""
    with suppress(OSError, RuntimeError, ValueError):
        record = _record()
        status = record.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return set(record.read_text().split())
    return set()


def _add(digests: Iterable[str]) -> None:
    new = [d for d in digests if d not in _trusted()]
    with suppress(OSError, RuntimeError):  # a read-only home: the user is asked again
        if new:
            _record().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(_record(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(file, "a") as record:
                record.write("".join(f"{d}\n" for d in new))
