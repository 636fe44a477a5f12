"""Keys of the configuration: fields of dataclasses, each with its default and its meaning, and their dotted names.

    max_epochs: Count = key(15, "stop after this many epochs")

`train_anywhere.config.command.compose` puts the defaults below the values of the project's configs/train.yaml. They are not defaults
of the dataclass: a key that a command deletes (`~seed`) is missing.
"""

import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any

CHOICE = {"choice": True}
"""Metadata of a section that a file of the project chooses: the loader of that file adds the defaults of its class."""


def key(default: Any, meaning: str = "") -> Any:
    """Return a field of a dataclass that is a key."""
    return field(metadata={"default": default, "meaning": meaning})


def section(meaning: str) -> Any:
    """Return a field of a dataclass that is a section of keys."""
    return field(metadata={"meaning": meaning})


def defaults(cls: Any) -> dict[str, Any]:
    """Return the default of each key of a section, and of the sections in it that are no choices, as a tree."""
    tree: dict[str, Any] = {}
    for one in fields(cls):
        if "default" in one.metadata:
            tree[one.name] = one.metadata["default"]
        elif is_dataclass(one.type) and one.metadata != CHOICE and (inside := defaults(one.type)):
            tree[one.name] = inside
    return tree


def meanings(cls: Any, path: str = "") -> dict[str, str]:
    """Return the meaning of each key by its dotted name: {'trainer.max_steps': 'stop after this many optimizer steps'}."""
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
    """Return {'a': {'b': 1}} as {'a.b': 1}; a mapping in a section with keys such as 0 stays one value."""
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
            section[part] = inner = (
                section.get(part) or {}
            )  # None: the default of a section that may be left out
            section = inner
        section[last] = value
    return tree


def as_typed(value: object) -> str:
    """Return a value of the configuration as it is typed, such as `null`."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
