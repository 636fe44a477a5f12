"""Folders as a person types them: `~` and `$NAME` mean what a shell makes of them, read in this one place.

A folder of a job's node ($SLURM_TMPDIR, $TMPDIR, $PBS_JOBDIR at its beginning) has a value on that node alone: it stays as it
is until a rank asks for it.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from train_anywhere.errors import DataError
from train_anywhere.files import ROOT
from train_anywhere.files.typed_paths import as_typed

MOST_OF_NAME, MOST_OF_PATH = 255, 4095
"""Bytes: NAME_MAX, and PATH_MAX without its final zero, of Linux' limits.h."""

_ON_NODE = re.compile(r"\$\{?(?:(?:SLURM|PBS)_\w+|TMPDIR)\b")
_VARIABLE = re.compile(r"\\\$|\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def on_node(text: str) -> bool:
    """Whether a folder is one of the job's node, which no other machine knows."""
    return bool(_ON_NODE.match(text))


def expand(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The path with `~`, `~user`, `$NAME` and `${NAME}` replaced; `\\$` is a dollar sign.

    Raises:
        ValueError: there is no such user or variable; the message completes a sentence.
    """
    if on_node(text):
        return text
    home = expand_home(text)
    return _VARIABLE.sub(lambda found: _value(found, environ), home)


def expand_home(text: str) -> str:
    """The path with a `~` or `~user` at its beginning replaced.

    Raises:
        ValueError: there is no such user.
    """
    home = os.path.expanduser(text)
    if home.startswith("~"):
        raise ValueError(f"names a user that this machine does not know ({text.split('/')[0]}); use a path")
    return home


def unexpanded(path: str) -> str:
    """The path as text that `expand` turns into it again."""
    return path if on_node(path) else path.replace("$", "\\$")


def here(path: str) -> str:
    """A path on the node where this process is.

    Raises:
        DataError: where the job has no such variable.
    """
    if not on_node(path):
        return path
    try:
        return _VARIABLE.sub(lambda found: _value(found, os.environ), path)
    except ValueError as error:
        raise DataError(f"{path} {error}.") from error


def absolute(path: str) -> Path:
    """An expanded path; a relative one is below the project's folder, whatever folder the command is typed in."""
    return Path(path) if on_node(path) else ROOT / path


def _value(found: "re.Match[str]", environ: Mapping[str, str]) -> str:
    if found[0] == "\\$":
        return "$"
    name = found[1] or found[2]
    if name not in environ:
        raise ValueError(f"names ${name}, which is not set here; set it, or use a path without it")
    return environ[name]


def node_only(path: str, local_disk: str, mounts: Sequence[str]) -> bool:
    """Whether a folder is one that only a job has: on a node's disk, or inside a container."""
    inside = [m.split(":")[1] for m in mounts if ":" in m]
    own = [local_disk, *inside]
    return path.startswith("$") or any(
        absolute(path).is_relative_to(top) for top in own if top.startswith("/")
    )


@dataclass(frozen=True)
class _Expanded:
    """What `train_anywhere.config.strict` calls with a path of the configuration."""

    expand: Callable[[str], str]

    def __call__(self, text: str) -> tuple[str, str]:
        try:
            path = self.expand(text)
        except (OSError, ValueError) as error:
            return text, str(error)
        longest = max(len(os.fsencode(name)) for name in path.split("/"))
        if longest > MOST_OF_NAME or len(os.fsencode(path)) > MOST_OF_PATH:
            return (
                text,
                f"is too long for a path: at most {MOST_OF_NAME} bytes for each name, {MOST_OF_PATH} in all; use a shorter one",
            )
        return path, ""


Folder = Annotated[str, _Expanded(expand)]
"""A path, or the name of an environment or image."""

AbsoluteFolder = Annotated[str, _Expanded(lambda text: str(absolute(expand(text))))]
"""A folder of the machine where the command is typed; a relative one is below the project's folder."""

RunFolder = Annotated[str, _Expanded(lambda text: str(as_typed(absolute(expand(text)))))]
"""A folder that is there when the command is typed: a link such as results/latest will lead to another one."""

NodeFolder = Annotated[str, _Expanded(expand_home)]
"""A path on the node: its variables are those of the job."""
