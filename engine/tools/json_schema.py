"""Write JSON schemas of configs/ to .vscode/ (`make schemas`), for editors.

Sources: json-schema.org draft-07, which the YAML language server reads (github.com/redhat-developer/yaml-language-server).
"""

import dataclasses
import json
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from train_anywhere.config import schema, strict
from train_anywhere.config.keys import CHECK, LIST_GROUPS, TARGET, OpenSection, key_fields
from train_anywhere.config.limits import Range
from train_anywhere.files import ROOT

Schema = dict[str, Any]

SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}

LATER: Schema = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
"""An interpolation, or a missing value, of OmegaConf, which is valid for any type."""

GROUPS = ("task", "data", "model", "optimizer", "schedule", "strategy", "container", *LIST_GROUPS)
"""Folders of configs/ whose files hold one section; other files hold keys of the whole configuration."""


def make_schemas() -> dict[str, Schema]:
    """Return a schema for each of `GROUPS`, and "config" for the whole configuration."""
    whole = _section(schema.Config)
    defaults = {
        "type": "array",
        "description": "choices of other files; see hydra.cc/docs/advanced/defaults_list",
    }
    whole["properties"] |= {"defaults": defaults, "hydra": {"type": "object"}}
    found = {"config": whole}
    for group in GROUPS:
        *kinds, _ = whole["properties"][group]["anyOf"]  # without LATER
        kinds += [{"type": "null"}] if group in LIST_GROUPS else []
        found[group] = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
    return {
        name: {"$schema": "http://json-schema.org/draft-07/schema#", **one} for name, one in found.items()
    }


def schema_files() -> dict[Path, str]:
    """Return the files below .vscode/ and their contents."""
    folder = ROOT / ".vscode"
    used = {f".vscode/schemas/{name}.json": f"configs/{name}/*.yaml" for name in GROUPS}
    patterns = ("train.yaml", "cluster/*.yaml", "experiment/*.yaml", "local/*.yaml")
    whole = {".vscode/schemas/config.json": [f"configs/{pattern}" for pattern in patterns]}
    settings = {"python.defaultInterpreterPath": ".venv/bin/python", "yaml.schemas": whole | used}
    texts = {
        folder / "schemas" / f"{name}.json": json.dumps(one) + "\n" for name, one in make_schemas().items()
    }
    return {folder / "settings.json": json.dumps(settings, indent=1) + "\n", **texts}


def main() -> int:
    """Write the files and return the exit code."""
    for path, text in schema_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _section(cls: type) -> Schema:
    """Return the schema of a dataclass. No key is required, since another file may set it."""
    keys = {name: _value(hint) for name, hint in strict.field_types(cls).items()}
    for field in key_fields(cls):
        if meaning := field.metadata.get("meaning"):
            keys[field.name]["description"] = meaning
    if not issubclass(cls, OpenSection):
        return {"type": "object", "properties": keys, "additionalProperties": False}
    names = {"type": ["string", "null"]}
    target: Schema = {"anyOf": [names, {"type": "object", "additionalProperties": names}]}
    return {"type": "object", "properties": {**keys, TARGET: target, CHECK: names}}


def _value(hint: Any) -> Schema:
    return {
        "anyOf": [one for kind, rules in strict.alternatives(hint) for one in _kinds(kind, rules)] + [LATER]
    }


def _kinds(kind: Any, rules: tuple[Any, ...]) -> list[Schema]:
    if dataclasses.is_dataclass(kind):
        return [_section(typing.cast(type, kind))]
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:  # precision: 32 is the choice "32"
        return [{"enum": [*inside, *(int(o) for o in inside if isinstance(o, str) and o.isdigit())]}]
    if origin is list:
        return [{"type": "array", "items": _value(inside[0])}]
    if origin is Mapping:
        return [{"type": "object", "additionalProperties": _value(inside[1])}]
    if kind is Any:
        return [{}]
    types = [SCALARS[kind], "number"] if kind is str else SCALARS[kind]  # name: 2024 is a string too
    return [{"type": types, **_bounds(rules)}]


def _bounds(rules: tuple[Any, ...]) -> Schema:
    words = {
        "at_least": "minimum",
        "at_most": "maximum",
        "above": "exclusiveMinimum",
        "below": "exclusiveMaximum",
    }
    ranges = [rule for rule in rules if isinstance(rule, Range)]
    found = {word: getattr(rule, name) for rule in ranges for name, word in words.items()}
    return {word: bound for word, bound in found.items() if bound is not None}


if __name__ == "__main__":
    sys.exit(main())
