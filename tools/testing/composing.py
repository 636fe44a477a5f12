"""Let Hydra read each file of the configuration once in a process and its forks, and compose a local run once.

The first saves a third of a composition; the second is one of two.
"""

import pickle
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.hydra import Hydra

from train_anywhere.config.command import compose
from train_anywhere.config.keys import CUSTOM

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult

_read = compose._load_choice
_ask_mode = Hydra.get_mode
_known: dict[object, bytes] = {}


def remember_files() -> None:
    """Replace the reader of choices, before the first composition, and what Hydra composes only to know its mode."""
    compose._load_choice = _load_choice
    Hydra.get_mode = _get_mode  # type: ignore[assignment, method-assign]


def _get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """Return None, as without a key `hydra.mode`, if neither the words nor the project can choose a file that has it."""
    read, chosen = "", ("cluster", "experiment", "hydra", "/")
    if not any(word.lstrip("+~").startswith(chosen) for word in overrides):
        with suppress(OSError, ValueError):
            read = (compose.CONFIGS / "train.yaml").read_text()
    plain = config_name == "train" and "- cluster: local " in read and "mode:" not in read
    if plain and not (compose.CONFIGS / "local").exists():
        return None
    return _ask_mode(hydra, config_name, overrides)


def _load_choice(source: "FileConfigSource", config_path: str) -> "ConfigResult":
    """Return a copy of what the file had, unless it or custom.yaml of its group has changed since."""
    file = Path(source.path, source._normalize_file_name(config_path))
    custom = compose.CONFIGS / file.parent.name / f"{CUSTOM}.yaml"
    key = (source.provider, str(file), _stamp(file), str(custom), _stamp(custom))
    if key not in _known:
        _known[key] = pickle.dumps(_read(source, config_path))
    found: ConfigResult = pickle.loads(_known[key])
    return found


def _stamp(file: Path) -> tuple[int, ...]:
    """Return what a change of the file changes; nothing if it is missing."""
    with suppress(OSError):
        found = file.stat()
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
    return ()
