"""A configuration with dotted keys, as they are typed on the command line."""

from collections.abc import Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} as {'a.b': 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': 1} as {'a': {'b': 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = value
    return tree
