"""Write docs/reference/keys.md, the page of all keys and choices (`make schemas`).

Types, defaults and meanings are from the dataclasses of `train_anywhere.config.schema`; those of choices are from their files in configs/
and from the signatures of targets.
"""

import dataclasses
import html
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import yaml

from train_anywhere.config import strict
from train_anywhere.config.command.compose import CONFIGS
from train_anywhere.config.command.help_comments import choice_titles, read_comments
from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.config.keys import CHECK, LIST_GROUPS, TARGET, defaults, meanings
from train_anywhere.config.limits import Range, Span
from train_anywhere.config.paths import ExpandRule
from train_anywhere.config.schema import Config
from train_anywhere.config.signatures import TargetError, read
from train_anywhere.files import ROOT

PAGE = ROOT / "docs/reference/keys.md"

INTRO = """\
# All keys

<!-- `make schemas` writes this page from configs/ and the types of the configuration. -->

Override any key on the command line with `key=value`, or in a file of `configs/experiment/`. Choose a file of a group with
`group=choice`, such as `model=resnet18`. `python src/train.py --help trainer` prints a section in the terminal.

`null` stands for no value, `${...}` for the value of another key. Put lists in quotes: `'model.hidden=[64,64]'`.

"""

SCALARS = {int: "int", float: "float", str: "string", type(None): "`null`", bool: "bool"}

LARGE = 2**14
"""Upper bounds from here on are not shown: they only catch typing errors."""

ESCAPED = re.compile(r"[*|\[\]{}\\]|(?<!\w)_|_(?!\w)")
"""Matches characters that Markdown reads as markup."""

Tree = Mapping[str, Any]


def make_page() -> str:
    """Return the page as Markdown."""
    entries = [entry for entry in read_mapping(CONFIGS / "train.yaml")["defaults"] if isinstance(entry, dict)]
    groups = {
        name: choice for entry in entries for name, choice in entry.items() if (CONFIGS / name).is_dir()
    }
    hints, tree, comments = strict.field_types(Config), defaults(Config), meanings(Config)
    nested = {name: value for name, value in tree.items() if value and isinstance(value, dict)}
    plain = {name: value for name, value in tree.items() if name not in nested}
    parts = [INTRO, "## Run\n\n", *_keys("", plain, hints, comments)]
    for name in [*groups, *(name for name in nested if name not in groups)]:
        parts.append(f"## {name}\n\n")
        if name in groups:
            parts += _choices(name, hints.get(name), groups[name])
        if name in nested:
            parts += _section(name, hints[name], nested[name], comments)
    return "".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the page and return the exit code."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(make_page())
    return 0


def _load(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file of configs/ without interpolation, and the comments of its keys."""
    file = CONFIGS / f"{name}.yaml"
    text = file.read_text(encoding="utf-8-sig")
    group = name.rpartition("/")[0]
    return yaml.safe_load(text), read_comments(text, f"{group}." if group else "")


def _section(path: str, cls: type, values: Tree, comments: Mapping[str, str]) -> Iterator[str]:
    """Yield the summary and the table of a section, and after them its own sections."""
    yield f"{(cls.__doc__ or '').partition(chr(10))[0]}\n\n"
    hints = strict.field_types(cls)
    kinds = {key: strict.alternatives(hint)[0][0] for key, hint in hints.items()}
    inner = {
        key: kind for key, kind in kinds.items() if dataclasses.is_dataclass(kind) and values[key] is not None
    }
    yield from _keys(path, {k: v for k, v in values.items() if k not in inner}, hints, comments)
    for key, kind in inner.items():
        yield f"### {path}.{key}\n\n"
        yield from _section(f"{path}.{key}", typing.cast(type, kind), values[key], comments)


def _choices(group: str, hint: Any, default: str | None) -> Iterator[str]:
    """Yield the table of a group's choices, and then the keys of each choice."""
    titles = choice_titles(group)
    yield f"| {group}= | meaning |\n|---|---|\n"
    for choice, title in titles.items():
        yield f"| `{choice}` | {_escape(title)}{' The default.' if choice == default else ''} |\n"
    yield "\n"
    if hint is None or group == "cluster":  # files with keys of other sections
        return
    for choice in titles:
        values, comments = _load(f"{group}/{choice}")
        bases = [name for name in values.pop("defaults", ()) if name in titles]
        if group in LIST_GROUPS:
            named = {choice: values} if TARGET in values else values
            tables = [
                _choice_keys(f"{group}.{name}", own, own, hint, comments) for name, own in named.items()
            ]
        else:
            whole = {"name": choice, **values}
            for base in bases:
                inherited, their_comments = _load(f"{group}/{base}")
                whole, comments = inherited | whole, their_comments | comments
            values.pop("name", None)
            tables = [_choice_keys(group, values, whole, hint, comments)]
        if any(tables):
            like = "".join(f"Like `{group}={base}`, except for:\n\n" for base in bases)
            yield f"### {group}={choice}\n\n{like}{''.join(tables)}"


def _choice_keys(path: str, values: Tree, whole: Tree, hint: Any, comments: Mapping[str, str]) -> str:
    """Return the table of a choice's keys. `whole` has also those that it inherits."""
    keys = {k: v for k, v in values.items() if k != CHECK and not (k == TARGET and v)}
    hints, target = strict.field_types(strict.section_class(hint, whole)), whole.get(TARGET)
    for name in target.values() if isinstance(target, dict) else filter(None, [target]):
        with suppress(TargetError):  # a package that is not installed
            hints = {p.name: p.hint for p in read(name).parameters.values() if p.hint} | hints
    return "".join(_keys(path, keys, hints | {TARGET: str}, comments))


def _keys(path: str, values: Tree, hints: Mapping[str, Any], comments: Mapping[str, str]) -> Iterator[str]:
    """Yield the table of some keys. Nothing if there are none."""
    if values:
        yield "| key | type | default | meaning |\n|---|---|---|---|\n"
    for key, value in values.items():
        name = f"{path}.{key}".lstrip(".")
        meaning = _escape(comments.get(name, ""))
        yield f"| `{name}` | {type_words(hints.get(key, Any))} | `{_as_yaml(value)}` | {meaning} |\n"
    if values:
        yield "\n"


def type_words(hint: Any) -> str:
    r"""Return a type as Markdown: "int ≥ 1 or `null`", "`auto` \| `cpu`"."""
    kinds = sorted(strict.alternatives(hint), key=lambda one: one[0] is type(None))
    return " or ".join(_kind_words(kind, rules) for kind, rules in kinds)


def _kind_words(kind: Any, rules: tuple[Any, ...]) -> str:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    for rule in rules:
        if isinstance(rule, Span):
            return rule.words
        if isinstance(rule, ExpandRule):
            return "path"
    if origin is Literal:
        return " \\| ".join(f"`{option}`" for option in inside)
    if origin is list:
        item = type_words(inside[0])
        return f"list of {item}s" if item in ("string", "path", "mapping") else f"list of {item}"
    if origin is Mapping or dataclasses.is_dataclass(kind):
        return "mapping"
    return SCALARS.get(kind, "any") + "".join(_bounds(rule) for rule in rules if isinstance(rule, Range))


def _bounds(rule: Range) -> str:
    bounds = {"≥": rule.at_least, "\\>": rule.above, "≤": rule.at_most, "&lt;": rule.below}
    shown = [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None and bound < LARGE]
    return f" {', '.join(shown)}" if shown else ""


def _as_yaml(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _escape(text: str) -> str:
    """Return a comment as Markdown: pages that it names are links."""
    code = re.split(r"(`[^`]*`)", text)
    for number in range(0, len(code), 2):
        plain = html.escape(ESCAPED.sub(r"\\\g<0>", code[number]), quote=False)
        code[number] = re.sub(r"\bdocs/([\w/-]+)\.md", r"[\1](../\1.md)", plain)
    return "".join(code)


if __name__ == "__main__":
    sys.exit(main())
