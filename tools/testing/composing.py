"""Let Hydra read each file of the configuration once in a process and its forks: a third of a composition."""

import pickle
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from train_anywhere.config.command import compose
from train_anywhere.config.keys import CUSTOM

if TYPE_CHECKING:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult

_read = compose._load_choice
_known: dict[object, bytes] = {}


def remember_files() -> None:
    """Replace the reader of choices, before the first composition."""
    compose._load_choice = _load_choice


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
        return found.st_mtime_ns, found.st_ino, found.st_size
    return ()
