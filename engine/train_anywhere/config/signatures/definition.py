"""The definition of a target: a class or function that a configuration names."""

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
"""Top-level packages, and the framework whose loop can use their classes."""


class TargetError(Exception):
    """A name that is certainly not a class or function. The key is not in the message."""


NO_DEFAULT: Any = object()
"""The default of a parameter without one, or with one that is not a literal."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a target.

    Args:
        required: whether a call without it fails.
        hint: a type that `train_anywhere.config.strict.convert` can check; None: any value may be valid.
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
    """A class or function according to its source.

    Args:
        name: dotted name of its definition, not of a re-export.
        line: line number of `class` or `def`, from 1; 0 if unknown.
        kind: "unreadable" if it exists, or may exist, but only an import would show its signature.
        parameters: parameters of a call, in order, without `self` and `cls`.
        takes_any: whether it accepts, or may accept, other names than `parameters`.
        bases: dotted names of all base classes, nearest first, without `object`.
        attributes: class attributes with a literal value, including inherited ones.
        framework: the framework of its package or of a base's package.
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


def find_framework(names: Iterable[str]) -> Framework | None:
    """Return the framework of the first dotted name that has one."""
    tops = (name.split(".")[0] for name in names)
    return next((FRAMEWORKS[top] for top in tops if top in FRAMEWORKS), None)
