"""Turn a plain tree (dicts, lists, scalars) into dataclasses, strictly, and collect every problem instead of the first.

Only the types that configurations need are known: int, float, bool, str, None, Literal, unions of these, list[...],
nested dataclasses, and a `Choice`: one of several dataclasses picked by the section's `name`.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

T = TypeVar("T")


class Choice:
    """Annotated metadata: the section is one of these dataclasses, picked by its key `name`."""

    def __init__(self, *classes: type) -> None:
        self.classes = {name: c for c in classes for name in typing.get_args(_hints(c)["name"])}


def build(cls: type[T], tree: Mapping[str, Any], problems: list[str], path: str = "") -> T | None:
    """Build `cls` from `tree`; append one sentence to `problems` for whatever does not fit.

    Args:
        cls: a dataclass; a field with a default (in rows of tables) may be left out.
        tree: keys and values of the section.
        problems: receives the sentences.
        path: dotted name of the section, for the messages.

    Returns:
        The object, or None where a problem of this section made it impossible.
    """
    hints = _hints(cls)
    optional = {f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}  # type: ignore[arg-type]
    before = len(problems)
    for key in tree:
        if key not in hints:
            problems.append(
                f"'{_join(path, str(key))}' is not a key of the configuration{did_you_mean(str(key), hints)}"
            )
    values = {}
    for key, hint in hints.items():
        if key not in tree and key in optional:
            continue
        if key not in tree:
            problems.append(f"'{_join(path, key)}' is missing; give it a value of type {describe(hint)}.")
        else:
            values[key] = convert(hint, tree[key], problems, _join(path, key))
    return cls(**values) if len(problems) == before else None


def convert(hint: Any, value: Any, problems: list[str], path: str) -> Any:
    """Check `value` against the type `hint`; returns it converted, or appends a problem and returns None."""
    if typing.get_origin(hint) is typing.Annotated:
        return _pick(typing.get_args(hint)[1], value, problems, path)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return build(typing.cast(type, hint), value, problems, path)
    elif isinstance(value, list) and (
        lists := [h for h in _alternatives(hint) if typing.get_origin(h) is list]
    ):
        item = typing.get_args(lists[0])[0]
        return [convert(item, v, problems, f"{path}[{i}]") for i, v in enumerate(value)]
    else:
        for kind in (h for h in _alternatives(hint) if not _is_list(h)):
            fits, converted = _scalar(kind, value)
            if fits:
                return converted
    shown = "null" if value is None else f"'{value}'"
    names = [str(v) for kind in _alternatives(hint) for v in typing.get_args(kind)]
    near = nearest(str(value), names)
    problems.append(f"{path}={shown} is not {describe(hint)}." + (f" Did you mean '{near}'?" if near else ""))
    return None


def _pick(choice: Choice, value: Any, problems: list[str], path: str) -> Any:
    name = value.get("name") if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping) or not isinstance(name, str) or name not in choice.classes:
        problems.append(f"{path}={name} is not a choice{did_you_mean(str(name), choice.classes)}")
        return None
    return build(choice.classes[value["name"]], value, problems, path)


def _scalar(kind: Any, value: Any) -> tuple[bool, Any]:
    if kind is type(None):
        return value is None, None
    if typing.get_origin(kind) is Literal:
        for option in typing.get_args(
            kind
        ):  # by text, so that precision=32 (a number in YAML) is the choice "32"
            if str(value) == str(option) and isinstance(value, bool) == isinstance(option, bool):
                return True, option
        return False, None
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool), value
    if kind is float and isinstance(value, int):
        return True, float(value)
    if kind is str and isinstance(
        value, (int, float)
    ):  # name=2024: YAML reads a number where a word is meant
        return True, str(value)
    return isinstance(value, kind), value


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` most likely is a slip of."""
    import difflib  # only for a refusal

    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: the nearest of `known`, or all of them when none is near and they are few."""
    names = list(known)
    near = nearest(word, names)
    if near:
        return f". Did you mean '{near}'?"
    return f". Known: {', '.join(names)}." if names and len(names) <= 12 else "."


def describe(hint: Any) -> str:
    """A type in a user's words: 'a whole number or null', 'one of sgd, adamw'."""
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        type(None): "null",
    }
    parts = []
    for kind in _alternatives(hint):
        if typing.get_origin(kind) is Literal:
            options = typing.get_args(kind)
            parts.append(("one of " if len(options) > 1 else "") + ", ".join(str(o) for o in options))
        elif typing.get_origin(kind) is list:
            parts.append(f"a list ({describe(typing.get_args(kind)[0])})")
        else:
            parts.append(words.get(kind, "a section of keys"))
    return " or ".join(parts)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return typing.get_args(hint)
    return (hint,)


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
