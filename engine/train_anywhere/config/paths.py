"""Paths as users type them, with `~` and `$NAME` as in a shell.

A path that starts with a variable of the job's node ($SLURM_TMPDIR, $TMPDIR, $PBS_JOBDIR) stays unchanged until a rank resolves it there.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
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


def is_on_node(text: str) -> bool:
    """Return whether a path starts with a variable that only the job's node has."""
    return bool(_ON_NODE.match(text))


def expand(text: str, environ: Mapping[str, str] = os.environ) -> str:
    r"""Return the path with `~`, `~user`, `$NAME` and `${NAME}` replaced; `\$` is a dollar sign.

    Raises:
        ValueError: the user or variable does not exist. The message continues a sentence that starts with the path.
    """
    if is_on_node(text):
        return text
    home = expand_home(text)
    return _VARIABLE.sub(lambda found: _value(found, environ), home)


def expand_home(text: str) -> str:
    """Return the path with a leading `~` or `~user` replaced.

    Raises:
        ValueError: the user does not exist.
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

    Raises:
        DataError: a variable is not set in this job.
    """
    if not is_on_node(path):
        return path
    try:
        return _VARIABLE.sub(lambda found: _value(found, os.environ), path)
    except ValueError as error:
        raise DataError(f"{path} {error}.") from error


def make_absolute(path: str) -> Path:
    """Return an expanded path as absolute; relative ones are below the project's folder, not the current one."""
    return Path(path) if is_on_node(path) else ROOT / path


def _value(found: "re.Match[str]", environ: Mapping[str, str]) -> str:
    if found[0] == "\\$":
        return "$"
    name = found[1] or found[2]
    if name not in environ:
        raise ValueError(f"names ${name}, which is not set here; set it, or use a path without it")
    return environ[name]


def is_node_only(path: str, local_disk: str, mounts: Sequence[str]) -> bool:
    """Return whether only a job has the path: on a node's disk, or inside a container."""
    inside = [m.split(":")[1] for m in mounts if ":" in m]
    own = [local_disk, *inside]
    return path.startswith("$") or any(
        make_absolute(path).is_relative_to(top) for top in own if top.startswith("/")
    )


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
