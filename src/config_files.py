"""What is wrong with a YAML file, in one sentence with its name and line; Hydra shows a traceback of its own code instead."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from src.errors import ConfigError

HEADER = "# @package _global_"
"""First line of a file whose keys are the configuration's own, instead of those of its group."""

WORDS = {"found character '\\t'": "a tab can't indent; use spaces"}
"""Clearer than what PyYAML says."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys that a YAML file holds.

    Raises:
        ConfigError: where the file can't be read or holds no keys; it names file and line.
    """
    import yaml
    from omegaconf._utils import get_yaml_loader  # refuses a key that is there twice

    try:
        tree = yaml.load(read_text(path), Loader=get_yaml_loader())
    except yaml.YAMLError as error:
        raise ConfigError([yaml_sentence(error, str(path))]) from error
    if not isinstance(tree, dict):
        held = {list: "a list", type(None): "nothing"}.get(type(tree), "a single value")
        raise ConfigError([f"{path} must hold keys, one `key: value` per line, and holds {held}."])
    if odd := [key for key in tree if not isinstance(key, str)]:
        raise ConfigError([f"{path}: {odd[0]!r} is not a key of the configuration."])
    return tree


def read_text(path: Path) -> str:
    """The content of a text file.

    Raises:
        ConfigError: where it can't be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError([f"{path} can't be read: {error.strerror}."]) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise ConfigError(
            [f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8."]
        ) from error


def yaml_sentence(error: Exception, path: str | None = None) -> str:
    """PyYAML's error with file and line.

    Args:
        path: the file, where the error does not know its name.
    """
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).split("\n")[0]
    if problem.startswith("but "):
        problem = f"{error.context}, {problem}"  # type: ignore[attr-defined]
    clearer = next((words for start, words in WORDS.items() if problem.startswith(start)), problem)
    name = path or getattr(mark, "name", None) or getattr(error, "name", None) or "a YAML file"
    return f"{name}{f', line {mark.line + 1}' if mark else ''}: {clearer}."


def problem_of_choice(path: Path, keys: Collection[str]) -> str | None:
    """What is wrong with the file of one choice of a group, apart from its values.

    Args:
        keys: the configuration's own, at the top: tells them from those of a group.
    """
    try:
        text = read_text(path)
        tree = read_mapping(path) if re.search(r"^\s*[^#\s]", text, re.MULTILINE) else {}
    except ConfigError as error:
        return error.problems[0]
    if not isinstance(tree.get("defaults", []), list):
        return f"{path}: defaults must be a list, one `- group: choice` per line."
    if HEADER not in text and (path.parent.name not in keys or tree.keys() & keys):
        below = f"its keys go below '{path.parent.name}'" if tree else "it is empty"
        return f"{path} lacks the header line `{HEADER}`: without it {below}. Make that its first line."
    return None
