"""What is known of a target: a class or function that a configuration names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Framework = Literal["lightning", "keras"]

FRAMEWORKS: dict[str, Framework] = {
    "torch": "lightning",
    "torchvision": "lightning",
    "torchmetrics": "lightning",
    "timm": "lightning",
    "lightning": "lightning",
    "lightning_fabric": "lightning",
    "pytorch_lightning": "lightning",
    "keras": "keras",
    "tensorflow": "keras",
}
"""Top packages, and the framework whose loop can use what they define."""


class TargetError(Exception):
    """A name that certainly is no class or function; the message is a sentence without the key it was given for."""


class _NoDefault:
    """The type of `NO_DEFAULT`: a name in the output of a test that fails."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT = _NoDefault()
"""The default of a parameter that has none, or one that is more than a literal."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a target.

    Args:
        name: as it is written in the source.
        required: whether a call without it fails.
        hint: a type that `train_anywhere.config.strict.convert` understands; None: any value may be right.
        default: its literal value, or `NO_DEFAULT`.
        positional_only: whether it can't be given by name.
    """

    name: str
    required: bool
    hint: Any = None
    default: Any = NO_DEFAULT
    positional_only: bool = False


@dataclass(frozen=True)
class Definition:
    """A class or function, as far as its source says.

    Args:
        name: dotted name of the place where it is defined, whatever re-exports it.
        file: its source; None where there is none to read.
        line: of its `class` or `def`, from 1; 0 if unknown.
        kind: "unreadable" for what exists, or may exist, and says nothing about itself before it is imported.
        parameters: of a call, in order, without `self` and `cls`.
        takes_any: whether it accepts names beyond `parameters`, or may.
        bases: dotted names of all base classes, nearest first, without `object`.
        attributes: class attributes with a literal value, its own and inherited ones.
        framework: the one it belongs to by its package or that of a base.
    """

    name: str
    kind: Literal["class", "function", "unreadable"]
    file: Path | None = None
    line: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    takes_any: bool = True
    bases: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    framework: Framework | None = None


def framework_of(names: Iterable[str]) -> Framework | None:
    """The framework of the first dotted name that has one."""
    tops = (name.split(".")[0] for name in names)
    return next((FRAMEWORKS[top] for top in tops if top in FRAMEWORKS), None)
