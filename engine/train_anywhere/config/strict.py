"""Strict conversion of a plain tree to dataclasses, which collects all problems.

Supported types: int, float, bool, str, None, Literal, unions of these, list[...], Mapping[str, ...], nested dataclasses, and unions of
dataclasses, of which the section's name or target picks one. `Annotated[kind, rule]` adds a rule of `train_anywhere.config.limits` or
`train_anywhere.config.paths`. Strings can't be empty: null stands for no value.
pydantic is not used: it gives no object for a configuration with a problem, so the checks that find the others could not run.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from train_anywhere.config.keys import TARGET, OpenSection, key_fields, split_section
from train_anywhere.config.limits import Duration, Span
from train_anywhere.errors import NO_KEY, Problem, listed

T = TypeVar("T")

UNUSABLE = object()
"""The result of `convert` for a value of the wrong type."""


def build(cls: type[T], tree: Mapping[str, Any], problems: list[str], path: str = "") -> T | None:
    """Build `cls` from `tree` and append one sentence to `problems` for each fault.

    `cls` is a dataclass. Fields with a default may be left out. `path` is the dotted name of the section, for the messages.

    Returns:
        The object, or None if a value is missing or of the wrong type. Numbers out of range and unknown keys still give an
        object, so that further checks can run; use it only if `problems` stays empty.
    """
    hints = field_types(cls)
    values: dict[str, Any] = {}
    if issubclass(cls, OpenSection):
        values, tree = split_section(tree, set(hints), problems, path)
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    optional = {f.name for f in fields if f.default is not missing or f.default_factory is not missing}
    problems += [
        unknown_key(_join(path, str(key)), did_you_mean(str(key), hints, path))
        for key in tree
        if key not in hints
    ]
    for key, hint in hints.items():
        if key in tree:
            values[key] = convert(hint, tree[key], problems, _join(path, key))
        elif key not in optional:
            values[key] = UNUSABLE
            problems.append(f"'{_join(path, key)}' is missing; give it {describe(hint)}.")
    return None if any(v is UNUSABLE for v in values.values()) else cls(**values)


def unknown_key(key: str, hint: str) -> Problem:
    """Return the message about an unknown key, which ends with a hint."""
    return Problem(f"'{key}' {NO_KEY}{hint}", "key", key)


def convert(hint: Any, value: Any, problems: list[str], path: str) -> Any:
    """Return `value` converted to the type `hint`, and append what does not fit to `problems`.

    The result is `UNUSABLE` for a wrong type, and an allowed value if only a rule is violated.
    """
    if choices := _choices(hint):
        if isinstance(value, Mapping) and (cls := section_class(hint, value)):
            return _section(cls, value, problems, path)
        shown = _shown(value.get("name") if isinstance(value, Mapping) else value)
        problems.append(f"{path}={shown} is not a choice{did_you_mean(shown, choices)}")
        return UNUSABLE
    for kind, rules in alternatives(hint):
        fits, converted = _fit(kind, value, problems, path)
        if fits:
            for rule in rules if converted is not UNUSABLE else ():
                converted, words = rule(converted)
                if words:
                    problems.append(f"{path}={_shown(value)} {words}.")
            return converted
    shown = "null" if value is None else f"'{_shown(value)}'"
    names = [str(v) for kind, _ in alternatives(hint) for v in typing.get_args(kind)]
    near = nearest(str(value), names) if isinstance(value, str) else None
    text = f"{path}={shown} {_misfit(hint, value)}." + (f" Did you mean '{near}'?" if near else "")
    problems.append(Problem(text, "value", path, _shown(value)))
    return UNUSABLE


def _section(cls: type, value: Mapping[str, Any], problems: list[str], path: str) -> Any:
    built = build(cls, value, problems, path)
    return UNUSABLE if built is None else built


def _fit(kind: Any, value: Any, problems: list[str], path: str) -> tuple[bool, Any]:
    """Return whether `value` has the type `kind`, and the converted value."""
    if kind is Any:
        return True, value
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            return False, None
        return True, _section(typing.cast(type, kind), value, problems, path)
    if (origin := typing.get_origin(kind)) not in (Mapping, list):
        return _scalar(kind, value)
    if not isinstance(value, origin):
        return False, None
    item = typing.get_args(kind)[-1]
    if origin is list:
        items = [convert(item, v, problems, f"{path}[{i}]") for i, v in enumerate(value)]
        return True, UNUSABLE if UNUSABLE in items else items
    entries = {str(k): convert(item, v, problems, f"{path}.{k}") for k, v in value.items()}
    return True, UNUSABLE if UNUSABLE in entries.values() else entries


def _scalar(kind: Any, value: Any) -> tuple[bool, Any]:
    if kind is type(None):
        return value is None, None
    if typing.get_origin(kind) is Literal:
        for option in typing.get_args(kind):
            # compared as strings, so that precision=32 (a number in YAML) is the choice "32"
            if _shown(value) == str(option) and isinstance(value, bool) == isinstance(option, bool):
                return True, option
        return False, None
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool), value
    if kind is float and isinstance(value, int):
        try:
            return True, float(value)
        except OverflowError:
            return True, math.inf if value > 0 else -math.inf
    if kind is str:
        # YAML reads name=2024 as a number
        text = _shown(value) if isinstance(value, (int, float)) else value
        whole = isinstance(text, str) and text.strip() and "\0" not in text
        return bool(whole) and not any("\ud800" <= c <= "\udfff" for c in text), text
    return isinstance(value, kind), value


def _misfit(hint: Any, value: Any) -> str:
    """Return what is wrong with a value of the wrong type."""
    kinds = [kind for kind, _ in alternatives(hint)]
    if str in kinds and isinstance(value, str):
        if value.strip():
            return "contains a character that names, paths and options can't have"
        if type(None) in kinds:
            return "is empty; use null for no value"
        return "is empty" + (f"; use {describe(hint)}" if len(kinds) > 1 else "")
    quotes = "; put it in quotes" if str in kinds and hasattr(value, "isoformat") else ""  # a date
    return f"is not {describe(hint)}{quotes}"


def _shown(value: Any) -> str:
    """Return a value as shown in a message, on at most one line."""
    # Python refuses to convert huge integers to decimal
    huge = isinstance(value, int) and value.bit_length() > 10_000
    text = hex(value) if huge else str(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:60]}..."


def nearest(word: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the string in `known` that `word` is most likely a misspelling of, or None."""
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=similarity)), None)


def did_you_mean(word: str, known: Iterable[str], within: str = "") -> str:
    """Return the end of a message: the nearest of `known`, or all if they are few.

    `within` is the dotted name of the section whose keys they are, which is put before the suggestion.
    """
    names = list(known)
    near = nearest(word, names)
    if near:
        return f". Did you mean '{_join(within, near)}'?"
    return f". Known: {listed(names)}." if names else "."


def describe(hint: Any) -> str:
    """Return a type in plain words: 'a whole number or null', 'one of sgd, adamw'."""
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
        Any: "any value",
        type(None): "null",
    }
    parts = []
    for kind, rules in alternatives(hint):
        if named := [rule.words for rule in rules if isinstance(rule, Span | Duration)]:
            parts += named
        elif typing.get_origin(kind) is Literal:
            options = typing.get_args(kind)
            parts.append(("one of " if len(options) > 1 else "") + listed(str(o) for o in options))
        elif typing.get_origin(kind) is list:
            parts.append(f"a list ({describe(typing.get_args(kind)[0])})")
        else:
            parts.append(words.get(kind, "a section of keys"))
    return " or ".join(dict.fromkeys(parts))


def alternatives(hint: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the types of a union, or the one type, each with its rules."""
    plain, rules = _plain(hint)
    union = typing.get_origin(plain) in (types.UnionType, typing.Union)
    kinds = typing.get_args(plain) if union else (plain,)
    return [(kind, own or rules) for kind, own in map(_plain, kinds)]


def _plain(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(hint) is typing.Annotated:
        kind, *rules = typing.get_args(hint)
        return kind, tuple(rules)
    return hint, ()


def section_class(hint: Any, section: Mapping[str, Any]) -> Any:
    """Return the dataclass of a section of this type, by its name or target. None if its name is not a choice."""
    kinds = [kind for kind, _ in alternatives(hint)]
    if choices := _choices(hint):
        opened = [one for one in kinds if issubclass(one, OpenSection) and TARGET in section]
        return opened[0] if opened else choices.get(str(section.get("name")))
    kind = kinds[0]
    return typing.get_args(kind)[1] if typing.get_origin(kind) is Mapping else kind


def _choices(hint: Any) -> dict[str, type]:
    """Return the classes of a union of dataclasses by the names of their sections."""
    classes = [kind for kind, _ in alternatives(hint) if dataclasses.is_dataclass(kind)]
    several = classes if len(classes) > 1 else []
    return {name: typing.cast(type, c) for c in several for name in typing.get_args(field_types(c)["name"])}  # type: ignore[arg-type]


def section_keys(cls: type) -> frozenset[str]:
    """Return the keys of a section."""
    return frozenset(field_types(cls))


def field_types(cls: type) -> dict[str, Any]:
    """Return the type of each key of a section."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in key_fields(cls)}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
