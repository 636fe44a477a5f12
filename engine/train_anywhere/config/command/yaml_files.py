"""Report what is wrong with a YAML file, with its name and line."""

import dataclasses
import re
import stat
import typing
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import yaml

from train_anywhere.config.keys import LIST_GROUPS, SINGLE_GROUPS, TARGET, defaults
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import alternatives, field_types, section_keys
from train_anywhere.errors import ConfigError, ProjectError

KEYS = section_keys(Config) - {"name"}
"""The top-level keys of the configuration, except `name`, which is also a key in every choice file."""

HEADER = "# @package _global_"
"""First line of a file whose keys are top-level keys instead of keys of its group."""

ODD_NUMBER = re.compile(
    r"[-+]?(0[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[0-9_]{4000,})"
)
"""Numbers of YAML 1.1 in base 8, 16, 2 and 60, such as the time 30:00, and those of more digits than Python reads: they are strings, as
on the command line. https://yaml.org/type/int.html"""

MAX_VALUES = 100_000
"""Most values that aliases of YAML may stand for: ten lines of aliases of aliases can stand for billions."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file that holds keys.

    Raises ConfigError: the file can't be read or holds no keys; the message names file and line.
    """
    try:
        tree = parse(read_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(yaml_sentence(error, str(path))) from error
    if not isinstance(tree, dict):
        content = {list: "a list", type(None): "nothing"}.get(type(tree), "a single value")
        raise ConfigError(f"{path} must contain keys, one `key: value` per line, but contains {content}.")
    if odd := [key for key in tree if not isinstance(key, str)]:
        raise ConfigError(f"{path}: {odd[0]!r} is not a key of the configuration.")
    return tree


def read_text(path: Path) -> str:
    """Return the content of a text file.

    Raises ConfigError: the file can't be read, or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise ConfigError(
            f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8."
        ) from error


def refuse_unusable_files(folder: Path) -> None:
    """Refuse files on which Hydra would hang, or an empty train.yaml.

    Raises ProjectError: train.yaml is empty, or a YAML file below `folder` is a pipe or device.
    """
    main = folder / "train.yaml"
    if main.is_file() and not main.stat().st_size:
        raise ProjectError(f"{main} is empty: restore it, such as with git checkout.")
    for path in sorted(folder.rglob("*.yaml")):
        with suppress(OSError):  # reading it gives a better message
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise ProjectError(f"{path} is a pipe or device: put a YAML file in its place, or delete it.")


def refuse_endless_aliases(root: yaml.Node | None) -> None:
    """Raise YAMLError if some YAML has more than `MAX_VALUES` values after each alias is replaced."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 1  # for an alias inside its own value
            inner = node.value if isinstance(node, yaml.CollectionNode) else []
            for entry in inner:
                sizes[id(node)] += sum(map(size, entry if isinstance(entry, tuple) else [entry]))
        return sizes[id(node)]

    if root and size(root) > MAX_VALUES:
        problem = f"its aliases (*name) stand for more than {MAX_VALUES:,} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=root.start_mark)


def parse(text: str | TextIO) -> Any:
    """Return YAML with values as on the command line. Raises YAMLError, also for a repeated key or endless aliases."""
    from omegaconf._utils import get_yaml_loader

    class Loader(get_yaml_loader()):  # type: ignore[misc]
        def construct_document(self, node: yaml.Node) -> Any:
            refuse_endless_aliases(node)
            return super().construct_document(node)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            for key, value in node.value:
                for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    odd = isinstance(one, yaml.ScalarNode) and one.style is None
                    if odd and (ODD_NUMBER.fullmatch(one.value) or is_changed(str(key.value), one.value)):
                        one.tag = self.DEFAULT_SCALAR_TAG
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    return yaml.load(text, Loader=Loader)


def is_changed(key: str, value: str) -> bool:
    """Return whether YAML would change a number that a key with strings has, such as 1_000."""
    if key.rpartition(".")[2] not in _string_keys() or not re.fullmatch(r"[-+.]?\d[\d_.eE+-]{0,30}", value):
        return False
    with suppress(ValueError):
        return str(float(value) if re.search(r"[.eE]", value) else int(value)) != value
    return False


@cache
def _string_keys() -> frozenset[str]:
    """Return the last names of the keys whose values are strings, or lists of them."""
    found: dict[str, set[Any]] = {}

    def add(name: str, hint: Any) -> None:
        for kind, _ in alternatives(hint):
            if dataclasses.is_dataclass(kind):
                for key, inner in field_types(typing.cast(type, kind)).items():
                    add(key, inner)
            elif typing.get_origin(kind) is list:
                add(name, typing.get_args(kind)[0])
            else:
                found.setdefault(name, set()).add(kind)

    add("", Config)
    return frozenset(name for name, kinds in found.items() if str in kinds and not kinds & {int, float, Any})


def yaml_sentence(error: Exception, path: str | None = None) -> str:
    """Return PyYAML's message with file and line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).split("\n")[0]
    if problem.startswith("but "):
        problem = f"{error.context}, {problem}"  # type: ignore[attr-defined]
    if problem.startswith("found character '\\t'"):
        problem = "a tab can't indent; use spaces"
    name = path or getattr(mark, "name", None) or getattr(error, "name", None) or "a YAML file"
    return f"{name}{f', line {mark.line + 1}' if mark else ''}: {problem}."


def choice_problem(path: Path) -> str | None:
    """Return what is wrong with the file of one choice of a group, apart from its values."""
    try:
        text = read_text(path)
        tree = read_mapping(path) if re.search(r"^\s*[^#\s]", text, re.MULTILINE) else {}
    except ConfigError as error:
        return error.problems[0]
    if not isinstance(tree.get("defaults", []), list):
        return f"{path}: defaults must be a list, one `- group: choice` per line."
    if path.stem in [str(entry).removesuffix(".yaml") for entry in tree.get("defaults", [])]:
        return f"{path} names itself among its defaults; remove that line."
    if problem := HEADER in text and section_problem(path, tree):
        return problem
    group = path.parent.name
    if not tree and group in KEYS:
        return f"{path} is empty; write the keys of {group} into it, or delete it."
    named = [tree, *(v for v in tree.values() if group in LIST_GROUPS and isinstance(v, dict))]
    plain = group in KEYS and any(TARGET in section for section in named)
    if HEADER not in text and not plain and (group not in KEYS or tree.keys() & KEYS):
        below = f"its keys go below '{group}'" if tree else "it is empty"
        return f"{path} lacks the header line `{HEADER}`: without it {below}. Make that its first line."
    if group in SINGLE_GROUPS and HEADER not in text and not tree.keys() & {TARGET, "name", "defaults"}:
        return f"{path} has no target; write `{TARGET}: package.name` into it."
    return None


def section_problem(path: Path, tree: dict[str, Any]) -> str | None:
    """Return what is wrong with the sections of a file with top-level keys."""
    file = path.parent.parent / "train.yaml"
    main = read_mapping(file) if file.is_file() else {}
    groups = [name for name, _ in chosen_groups(main)]
    for name, choice in chosen_groups(tree):
        if name.strip("/") in groups:
            line = f"- override /{name.strip('/')}: {choice}"
            return f"{path}: {name} has a choice already; write `{line}` into its defaults."
    sections = defaults(Config)
    for name in tree.keys() - {"defaults"}:
        is_section = isinstance(sections.get(name), dict) or name in groups
        if is_section and not isinstance(tree[name], dict | None):
            what = "a list" if isinstance(tree[name], list) else f"the value {tree[name]}"
            return f"{path}: {name} is {what}; write its keys below it, one `key: value` per line."
    return None


def chosen_groups(tree: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return each group that the defaults of a file name, with its choice."""
    entries = [entry for entry in tree.get("defaults") or [] if isinstance(entry, dict)]
    return [(str(group), choice) for entry in entries for group, choice in entry.items()]


def file_problems(folder: Path, error: Exception | None = None) -> list[str]:
    """Return what is wrong with train.yaml and the files chosen in its defaults.

    A decoding `error` does not name its file, so all files are read.
    """
    found: list[str] = []
    try:
        for path in sorted(folder.rglob("*.yaml")) if isinstance(error, UnicodeError) else ():
            read_text(path)
        chosen = chosen_groups(read_mapping(folder / "train.yaml"))
        paths = [folder / group / f"{choice}.yaml" for group, choice in chosen if choice]
        found += [p for path in paths if path.parent.is_dir() and (p := choice_problem(path))]
    except ConfigError as problem:
        found += problem.problems
    return found
