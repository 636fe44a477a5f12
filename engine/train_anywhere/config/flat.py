"""Configurations with dotted keys, as on the command line."""

import re
from collections.abc import Mapping
from typing import Any

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
