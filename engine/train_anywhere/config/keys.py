"""Keys of the configuration: defaults, meanings, dotted names, sections with a target.

    max_epochs: Count = key(15, "stop after this many epochs")

`train_anywhere.config.command.compose` puts the defaults below the values of the project's configs/train.yaml. They are not defaults
of the dataclass: a key that a command deletes (`~seed`) is missing.

Sections of the open groups (task, model, data, optimizer, schedule, callbacks, loggers, features) name a `_target_`:

    _target_: mine.Network                                       # or one for each framework:
    _target_: {lightning: torch.optim.Muon, keras: keras.optimizers.Lion}
    _check_: mine.checks.table                                   # optional, called before a submission
    hidden: 64                                                   # all other keys are arguments of the target

`train_anywhere.config.checks.targets` checks the arguments against the target's source. `train_anywhere.config.instantiate` calls it.
"""

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, get_args

from train_anywhere.config.checks.strategy_table import FrameworkName
from train_anywhere.errors import listed

CHOICE = {"choice": True}
"""Metadata of a section that a file of the project chooses: the loader of that file adds the defaults of its class."""


def key(default: Any, meaning: str = "") -> Any:
    """Return a field of a dataclass that is a key."""
    return field(metadata={"default": default, "meaning": meaning})


def section(meaning: str) -> Any:
    """Return a field of a dataclass that is a section of keys."""
    return field(metadata={"meaning": meaning})


def defaults(cls: Any) -> dict[str, Any]:
    """Return the default of each key of a section as a tree, without those of choices."""
    tree: dict[str, Any] = {}
    for one in fields(cls):
        if "default" in one.metadata:
            tree[one.name] = one.metadata["default"]
        elif is_dataclass(one.type) and one.metadata != CHOICE and (inside := defaults(one.type)):
            tree[one.name] = inside
    return tree


def meanings(cls: Any, path: str = "") -> dict[str, str]:
    """Return the meaning of each key by its dotted name."""
    found: dict[str, str] = {}
    for one in fields(cls):
        name = f"{path}{one.name}"
        if one.metadata.get("meaning"):
            found[name] = one.metadata["meaning"]
        if is_dataclass(one.type):
            found |= meanings(one.type, f"{name}.")
    return found


KEY = re.compile(r"(?!(True|False|None|inf|nan)$)[^\W\d][^.]*")
"""Keys that keep their meaning between dots."""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {'a': {'b': 1}} as {'a.b': 1}. A mapping with keys such as 0 stays one value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        named = isinstance(value, Mapping) and all(isinstance(k, str) and KEY.fullmatch(k) for k in value)
        if isinstance(value, Mapping) and value and (named or not prefix):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return {'a.b': 1} as {'a': {'b': 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        section = tree
        for part in sections:
            # None: the default of a section that may be left out
            section[part] = inner = section.get(part) or {}
            section = inner
        section[last] = value
    return tree


def as_typed(value: object) -> str:
    """Return a value of the configuration as it is typed, such as `null`."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


FRAMEWORKS = get_args(FrameworkName)

DERIVED = {"derived": True}
"""Metadata of a field that is not a key of the configuration."""

OPEN = {"open": True}
"""Metadata of the fields of `OpenSection`, which are not keys of their own."""

TARGET, CHECK = "_target_", "_check_"

ARGS, PARTIAL, CONVERT, RECURSIVE = HYDRA = ("_args_", "_partial_", "_convert_", "_recursive_")
"""Hydra's other keys of a mapping with a target. `_convert_` has no effect: a target always gets plain dicts and lists."""

PASSED = "_passed_"
"""Values of this project's keys of a section that its target takes too, such as `name` or `workers`; set while composing."""

SINGLE_GROUPS = ("task", "model", "data", "optimizer", "schedule")
"""Open groups with one choice per run."""

LIST_GROUPS = ("callbacks", "loggers", "features")
"""Open groups with any number of choices."""

CUSTOM = "custom"
"""The choice of a group that has no arguments, for a target that is typed."""

MODULE = "module"
"""The choice of data for the loaders of the LightningModule of `task`."""


def choice_name(name: str, target: str | None) -> str:
    """Return the name of a choice, or of the class or function that was typed in its place."""
    return target.rpartition(".")[2] if name == CUSTOM and target else name


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
        f"'{path}.{key}' is not a key of the configuration; {path} knows {listed([TARGET, CHECK, *known])}."
        for key in arguments
        if str(key).startswith("_") and key not in (*known, PASSED)
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
            else f"{path}.{TARGET}={shown} is not a dotted name, nor one for each of {listed(FRAMEWORKS)}."
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
