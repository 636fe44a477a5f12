"""The folders of the project and of the engine, found once when this module is imported.

Paths keep the links that the user typed: a link of this machine may be a mounted folder on a node.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.errors import ConfigError, ProjectError


def resolve_as_typed(path: str | os.PathLike[str]) -> Path:
    """Resolve a path, but keep the links above it that the user typed or the shell shows.

    A link at the end of the path is followed: results/latest later points to another run.
    """
    return restore_links(Path(os.path.realpath(path)), path)


def restore_links(path: Path, typed: str | os.PathLike[str] = "") -> Path:
    """Return an absolute path with the link that the user typed or sees put back, if any."""
    here = shell_folder()
    # the folders above it, the current folder and this program, topmost first
    for named in (here / typed, here / "*", here / sys.argv[0]):
        for link in reversed(named.parents):
            target = os.path.realpath(link)
            moved = target not in (str(link), str(path)) and path.is_relative_to(target)
            if moved and {"..", "latest"}.isdisjoint(link.parts):
                return link / path.relative_to(target)
    return path


def shell_folder() -> Path:
    """Return the current folder as the shell shows it, or / if it was deleted."""
    shown, here = os.environ.get("PWD", ""), "/"
    with suppress(OSError):
        here = os.getcwd()
        here = shown if os.path.isabs(shown) and os.path.samefile(shown, here) else here
    return Path(here)


def refuse_deleted_folder() -> None:
    """Raise ProjectError if the current folder was deleted, as relative paths need it."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ProjectError("the current folder was deleted: cd to one that exists.") from error


ENGINE = resolve_as_typed(Path(__file__).parents[1]).parent
"""The folder that holds this package: engine/ of a clone, the snapshot of a job, or site-packages."""

PROJECT_FILE = Path("configs", "train.yaml")
"""A folder with this file is a project."""

BARE = ENGINE / "train_anywhere" / "program" / "bare"
"""The project of programs that have none, for `python -m train_anywhere`; a job has a copy of it."""


def find_root() -> Path:
    """Return the folder of the project.

    It is the first with a project file: above the program, the current folder, $TRAIN_ROOT, above the current one.

    Only a program of the project counts, such as src/train.py, not one of the engine (`python -m train_anywhere.x`) or of the environment
    (pytest, jupyter). `from train_anywhere.inference import load_model` needs no project: it is the current folder then, and `BARE` for
    `python -m train_anywhere`. Raises ConfigError: none of these folders has a configs/train.yaml.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    program = resolve_as_typed(file) if file and os.path.exists(file) else None
    installed = (ENGINE / "train_anywhere", sys.prefix, sys.base_prefix)
    if program and (
        "site-packages" in program.parts or any(program.is_relative_to(folder) for folder in installed)
    ):
        program = None
    for folder in _candidates(program):
        if is_project(folder):
            return folder
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(spec, "name", "") == "train_anywhere.__main__":
        return BARE
    if "train_anywhere.inference" in sys.modules:  # the first import of the engine
        return resolve_as_typed(Path.cwd())
    if program:
        return program.parent.parent  # the program reports what is missing there
    raise ConfigError(
        f"no project here: neither {Path.cwd()} nor a folder above it has {PROJECT_FILE}; change to the project's folder, or set "
        "TRAIN_ROOT to it."
    )


def is_project(folder: Path) -> bool:
    """Return whether a folder is a project. Another template may have a configs/train.yaml too, which chooses no cluster."""
    try:
        text = (folder / PROJECT_FILE).read_text(errors="replace")
    except OSError:
        return False
    return "defaults:" not in text or bool(re.search(r"^ *- cluster:", text, re.M))


def _candidates(program: Path | None) -> Iterator[Path]:
    if program:
        yield from program.parents
    with suppress(FileNotFoundError):  # the current folder was deleted
        here = resolve_as_typed(Path.cwd())
        yield here
        if named := os.environ.get("TRAIN_ROOT"):
            yield resolve_as_typed(here / named)
        yield from here.parents


def with_engine(environ: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which `python -m train_anywhere.x` runs this engine."""
    environ = {**(os.environ if environ is None else environ)}
    folders = [f for f in environ.get("PYTHONPATH", "").split(os.pathsep) if f and f != str(ENGINE)]
    return {**environ, "PYTHONPATH": os.pathsep.join([str(ENGINE), *folders])}


ROOT = find_root()
"""The folder of the project."""

STANDALONE = not (ROOT / PROJECT_FILE).is_file()
"""True if there is no project."""

HAS_PROJECT = not (ROOT / "configs" / "bare.md").is_file()
"""True if the runs are those of a project, and not of other programs."""


def find_top(folder: Path) -> Path:
    """Return the git repository of a folder, or else the folder."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


WORK = ROOT if HAS_PROJECT else find_top(resolve_as_typed(shell_folder()))
"""The folder with the user's code and results: the project, or the repository in which a command is typed."""

OWN = ROOT / "configs" if HAS_PROJECT else Path(os.path.expanduser("~/.config/train-anywhere"))
"""The folder with the user's presets, settings and hosts."""
