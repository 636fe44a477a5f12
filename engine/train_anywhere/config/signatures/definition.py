"""The definition of a target: a class or function that a configuration names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Framework = Literal["lightning", "keras"]

_TORCH = (
    "torch",
    "torchvision",
    "torchmetrics",
    "timm",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
)
FRAMEWORKS: dict[str, Framework] = {
    **dict.fromkeys(_TORCH, "lightning"),
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
        kind: "unreadable" if it exists, or may exist, but only an import would show its signature.
        parameters: parameters of a call, in order, without `self` and `cls`.
        takes_any: whether it accepts, or may accept, other names than `parameters`.
        bases: dotted names of all base classes, nearest first, without `object`.
        attributes: class attributes with a literal value, including inherited ones.
    """

    name: str
    kind: Literal["class", "function", "unreadable"]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    takes_any: bool = True
    bases: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def framework(self) -> Framework | None:
        """The framework of its package or of the nearest base's package that has one."""
        tops = (name.split(".")[0] for name in (self.name, *self.bases))
        return next((FRAMEWORKS[top] for top in tops if top in FRAMEWORKS), None)
