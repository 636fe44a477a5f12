"""Change single values in the text of a preset, and keep its comments."""

import json
import re
from collections.abc import Mapping
from difflib import unified_diff
from typing import Any

import yaml

DELETE = object()
"""The new value of a list item to delete."""

Keys = tuple[str | int, ...]


def edit_text(text: str, values: Mapping[Keys, Any]) -> str:
    """Return the text of a YAML file with new values, such as {("cluster", "site", "nodes", 0, "cpus"): 62}."""
    for keys in sorted(values, key=lambda k: (values[k] is DELETE, [-n for n in k if isinstance(n, int)])):
        text = _edit(text, keys, values[keys])
    return text


def make_patch(path: str, old: str, new: str) -> str:
    """Return the change of a file as a unified diff, for `git apply` and `patch -p1`."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = unified_diff(before, after, f"a/{path}", f"b/{path}")
    return "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in lines)


def format_scalar(value: Any) -> str:
    """Return a value in YAML. Without quotes the strings `on`, `1e3` and `a: b` would be other values."""
    plain = re.fullmatch(r"[A-Za-z0-9][\w.-]*", f"{value}") and yaml.safe_load(f"{value}") == value
    return f"{value}" if plain and isinstance(value, str) else json.dumps(value)


def _edit(text: str, keys: Keys, value: Any) -> str:
    name: Any = None
    node: Any = yaml.compose(text)
    for key in keys:
        parent = node
        pairs = node.value if isinstance(key, str) else [(None, node.value[key])]
        name, node = next(((k, v) for k, v in pairs if not k or k.value == key), (None, None))
    if node is None:  # inserted before the second key: the first is often the name
        at = parent.value[min(1, len(parent.value) - 1)][0].start_mark
        gap = ", " if parent.flow_style else f"\n{' ' * at.column}"
        return f"{text[: at.index]}{keys[-1]}: {format_scalar(value)}{gap}{text[at.index :]}"
    start, end = node.start_mark.index, _end(node)
    if value is not DELETE:
        return f"{text[: name.end_mark.index]}: {format_scalar(value)}{text[end:]}"
    if not parent.flow_style:
        return text[: text.rfind("\n", 0, start) + 1] + text[end:].partition("\n")[2]
    if number := parent.value.index(node):
        return text[: _end(parent.value[number - 1])] + text[end:]
    return text[:start] + text[parent.value[1].start_mark.index :]


def _end(node: Any) -> int:
    """Return where a value ends. The end mark of a section of lines is behind the comments that follow."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return int(node.end_mark.index)
