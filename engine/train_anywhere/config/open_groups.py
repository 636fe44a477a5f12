"""Sections of the open groups, which name a `_target_`.

    _target_: mine.Network                                       # or one for each framework:
    _target_: {lightning: torch.optim.Muon, keras: keras.optimizers.Lion}
    _check_: mine.checks.table                                   # optional, called before a submission
    hidden: 64                                                   # all other keys are arguments of the target

`train_anywhere.config.checks.targets` checks the arguments against the target's source; `train_anywhere.config.instantiate` calls it.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_args

from train_anywhere.config.checks.strategy_table import FrameworkName

FRAMEWORKS = get_args(FrameworkName)

DERIVED = {"derived": True}
"""Metadata of a field that is not a key of the configuration."""

OPEN = {"open": True}
"""Metadata of the fields of `OpenSection`, which are not keys of their own."""

TARGET, CHECK = "_target_", "_check_"

ARGS, PARTIAL, CONVERT, RECURSIVE = HYDRA = ("_args_", "_partial_", "_convert_", "_recursive_")
"""Hydra's other keys of a mapping with a target. `_convert_` has no effect: a target always gets plain dicts and lists."""

SINGLE_GROUPS = ("task", "model", "data", "optimizer", "schedule")
"""Open groups with one choice per run."""

LIST_GROUPS = ("callbacks", "loggers", "features")
"""Open groups with any number of choices."""

CUSTOM = "custom"
"""The choice of a group that has no arguments, for a target that is typed."""


@dataclass(frozen=True)
class OpenSection:
    """A section with a target. Subclasses add the keys that this project reads.

    Attributes:
        target: dotted name of a class or function for each framework.
        check: dotted name of a function that checks the section before anything is opened, or None.
        arguments: arguments of the target, by name.
    """

    target: Mapping[str, str] = field(metadata=OPEN)
    check: str | None = field(metadata=OPEN)
    arguments: Mapping[str, Any] = field(metadata=OPEN)

    def tree(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section as a mapping. `own` are the keys that this project reads."""
        targets = set(self.target.values())
        target = targets.pop() if len(targets) == 1 and len(self.target) > 1 else dict(self.target)
        checked = {CHECK: self.check} if self.check else {}
        return {**own, TARGET: target, **checked, **self.arguments}


def key_fields(section: Any) -> "list[Field[Any]]":
    """Return the fields of a section, or of its class, that are keys of the configuration."""
    return [f for f in fields(section) if f.metadata not in (DERIVED, OPEN)]


def split_section(
    section: Mapping[str, Any], own: set[str], problems: list[str], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `OpenSection`, and the keys that are not arguments.

    `own` are keys that this project reads. `problems` receives a sentence for a missing or invalid `_target_`.
    """
    arguments = {k: v for k, v in section.items() if k not in own and k not in (TARGET, CHECK)}
    odd = [key for key in arguments if not isinstance(key, str)]
    problems += [f"{path}: {key} can't name an argument of a target; write a name." for key in odd]
    if path in ("optimizer", "schedule"):
        arguments.pop(PARTIAL, None)  # this project always adds arguments to the call
    known = [ARGS, CONVERT, RECURSIVE]
    problems += [
        f"'{path}.{key}' is not a key of the configuration; {path} knows {', '.join([TARGET, CHECK, *known])}."
        for key in arguments
        if str(key).startswith("_") and key not in known
    ]
    check = section.get(CHECK)
    if check is not None and not isinstance(check, str):
        problems.append(f"{path}.{CHECK}={check} is not the dotted name of a function.")
        check = None
    target = _targets(section.get(TARGET))
    if not target:
        shown = section.get(TARGET)
        problems.append(
            f"{path}.{TARGET} is missing; give it a class or function, such as {path}.{TARGET}=mine.name."
            if shown is None
            else f"{path}.{TARGET}={shown} is not a dotted name, nor one for each of {', '.join(FRAMEWORKS)}."
        )
    return {"target": target, "check": check, "arguments": arguments}, {
        k: v for k, v in section.items() if k in own
    }


def _targets(written: object) -> dict[str, str]:
    if isinstance(written, str):
        return dict.fromkeys(FRAMEWORKS, written)
    if not isinstance(written, Mapping) or set(written) - set(FRAMEWORKS):
        return {}
    named = {str(k): v for k, v in written.items() if v is not None}
    return named if all(isinstance(v, str) for v in named.values()) else {}
