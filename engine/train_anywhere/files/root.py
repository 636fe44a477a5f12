"""The folders of the project and of the engine, found once when this module is imported."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.errors import ConfigError
from train_anywhere.files.typed_paths import as_typed

ENGINE = as_typed(Path(__file__).parents[1]).parent
"""The folder that holds this package: engine/ of a clone, the snapshot of a job, or site-packages."""

MARK = Path("configs", "train.yaml")
"""A folder with this file is a project."""


def find_root() -> Path:
    """Return the folder of the project: around the command, else the current folder, else $TRAIN_ROOT, else a folder above.

    The command is a program of the project, such as src/train.py. Programs of the engine (`python -m train_anywhere.x`) and of the
    environment (pytest, jupyter) are not commands.

    Raises:
        ConfigError: none of these folders has a configs/train.yaml.
    """
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    command = as_typed(program) if program and os.path.exists(program) else None
    if command and _installed(command):
        command = None
    for folder in _places(command):
        if (folder / MARK).is_file():
            return folder
    if command:
        return command.parent.parent  # its command reports what is missing there
    raise ConfigError(
        f"no project here: neither {Path.cwd()} nor a folder above it has {MARK}; change to the project's folder, or name it in TRAIN_ROOT."
    )


def _installed(program: Path) -> bool:
    folders = (ENGINE / "train_anywhere", sys.prefix, sys.base_prefix)
    return "site-packages" in program.parts or any(program.is_relative_to(folder) for folder in folders)


def _places(command: Path | None) -> Iterator[Path]:
    if command:
        yield from command.parents
    with suppress(FileNotFoundError):  # the current folder was deleted
        here = as_typed(Path.cwd())
        yield here
        if named := os.environ.get("TRAIN_ROOT"):
            yield as_typed(here / named)
        yield from here.parents


def with_engine(environ: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which `python -m train_anywhere.x` runs this engine; None: that of this process."""
    environ = {**(os.environ if environ is None else environ)}
    folders = [f for f in environ.get("PYTHONPATH", "").split(os.pathsep) if f and f != str(ENGINE)]
    return {**environ, "PYTHONPATH": os.pathsep.join([str(ENGINE), *folders])}


ROOT = find_root()
"""The folder of the project."""
