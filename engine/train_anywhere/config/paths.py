"""Paths as users type them, with `~` and `$NAME`, and whether they can be written to.

A path that starts with a variable of the job's node ($SLURM_TMPDIR, $TMPDIR, $PBS_JOBDIR) stays unchanged until a rank resolves it there.
"""

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from train_anywhere.errors import DataError
from train_anywhere.files import ROOT
from train_anywhere.files.root import resolve_as_typed

MAX_NAME, MAX_PATH = 255, 4095
"""Bytes: NAME_MAX, and PATH_MAX without its final zero, from Linux' limits.h."""

_ON_NODE = re.compile(r"\$\{?(?:(?:SLURM|PBS)_\w+|TMPDIR)\b")
_VARIABLE = re.compile(r"\\\$|\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def is_run_name(name: str) -> bool:
    """Return whether a run may have this name: that of a folder and a job, never of the link `latest`."""
    return name.lower() != "latest" and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}", name))


def make_run_name(text: str) -> str:
    """Return the name of the run of a program that is called so."""
    name = re.sub(r"[^A-Za-z0-9._=+-]", "-", text).lstrip("._=+-")[:100]
    return name if is_run_name(name) else "program"


def is_on_node(text: str) -> bool:
    """Return whether a path starts with a variable that only the job's node has."""
    return bool(_ON_NODE.match(text))


def expand(text: str) -> str:
    r"""Return the path with `~`, `~user`, `$NAME` and `${NAME}` replaced. `\$` is a dollar sign.

    Raises:
        ValueError: the user or variable does not exist. The message continues a sentence that starts with the path.
    """
    if is_on_node(text):
        return text
    return _VARIABLE.sub(_value, expand_home(text))


def expand_home(text: str) -> str:
    """Return the path with a leading `~` or `~user` replaced.

    Raises ValueError: the user does not exist.
    """
    home = os.path.expanduser(text)
    if home.startswith("~"):
        raise ValueError(f"names a user that this machine does not know ({text.split('/')[0]}); use a path")
    return home


def escape_dollars(path: str) -> str:
    """Return a string that `expand` turns back into the path."""
    return path if is_on_node(path) else path.replace("$", "\\$")


def resolve_node_path(path: str) -> str:
    """Return a path with the variables of this node replaced.

    Raises DataError: a variable is not set in this job.
    """
    if not is_on_node(path):
        return path
    try:
        return _VARIABLE.sub(_value, path)
    except ValueError as error:
        raise DataError(f"{path} {error}.") from error


def make_absolute(path: str) -> Path:
    """Return an expanded path as absolute. Relative ones are below the project's folder."""
    return Path(path) if is_on_node(path) else ROOT / path


def _value(found: "re.Match[str]") -> str:
    if found[0] == "\\$":
        return "$"
    name = found[1] or found[2]
    if name not in os.environ:
        raise ValueError(f"names ${name}, which is not set here; set it, or use a path without it")
    return os.environ[name]


def is_node_only(path: str, local_disk: str, mounts: Sequence[str]) -> bool:
    """Return whether only a job has the path: on a node's disk, or inside a container."""
    own = [local_disk, *(m.split(":")[1] for m in mounts if ":" in m)]
    tops = [top for top in own if top.startswith("/")]
    return path.startswith("$") or any(map(make_absolute(path).is_relative_to, tops))


@dataclass(frozen=True)
class ExpandRule:
    """The rule for paths of the configuration, which `train_anywhere.config.strict` calls."""

    expand: Callable[[str], str]

    def __call__(self, text: str) -> tuple[str, str]:
        """Return the expanded path and "", or the string and the problem."""
        try:
            path = self.expand(text)
        except (OSError, ValueError) as error:
            return text, str(error)
        longest = max(len(os.fsencode(name)) for name in path.split("/"))
        if longest > MAX_NAME or len(os.fsencode(path)) > MAX_PATH:
            limits = f"at most {MAX_NAME} bytes for each name, {MAX_PATH} in all"
            return text, f"is too long for a path: {limits}; use a shorter one"
        return path, ""


Folder = Annotated[str, ExpandRule(expand)]
"""A path, or the name of an environment or image."""

AbsoluteFolder = Annotated[str, ExpandRule(lambda text: str(make_absolute(expand(text))))]
"""A folder on the machine of the command; a relative one is below the project's folder."""

RunFolder = Annotated[str, ExpandRule(lambda text: str(resolve_as_typed(make_absolute(expand(text)))))]
"""A folder whose last link is followed at once: results/latest points to another run later."""

NodeFolder = Annotated[str, ExpandRule(expand_home)]
"""A path on the node, with variables of the job."""

MIN_FREE = 64 * 1024
"""Bytes that must be free. A new run folder needs less; the size of its checkpoints is not known yet."""


def results_problems(results: Path, name: str) -> list[str]:
    """Return why no run folder can be made below `results`, or no link `latest`."""
    try:
        words, latest = write_problem(results / name), results / "latest"
        # the link to the newest run replaces neither
        if not words and os.path.lexists(latest) and not latest.is_symlink():
            kind = "folder" if latest.is_dir() else "file"
            words = f"{latest} is a {kind} where the link to the newest run belongs, rename it"
    except (OSError, ValueError) as error:
        words = f"{results} can't be used ({getattr(error, 'strerror', None) or error})"
    return [f"paths.results={results}: {words}; use paths.results=FOLDER."] if words else []


def write_problem(folder: Path) -> str:
    """Return why a folder, which may not exist yet, can't be written to. "" if it can.

    Raises OSError, ValueError: the path itself is invalid.
    """
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except OSError as error:
            # for a path that is not found, the folder above it is checked
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
                raise
        else:
            return _access_problem(place)
    return ""


def _access_problem(place: Path) -> str:
    if not place.exists():
        return f"{place} is a link to {os.readlink(place)}, which does not exist"
    if not place.is_dir():
        return f"{place} is a file, not a folder"
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return f"you can't write to {place}"
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize < MIN_FREE or (disk.f_files and not disk.f_favail):
        return f"the disk of {place} is full"
    return ""
