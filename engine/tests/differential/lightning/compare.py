"""Differences between the events of two runs of a program."""

import math
import re
from typing import Any

from engine.tests.differential.forks import ForkError

CHECKPOINT_HOOKS = ("on_save_checkpoint", "on_load_checkpoint", "state_dict", "load_state_dict")
Differences = dict[str, str]
"""Kinds of differences, each with an example: both values."""


def compare(expected: Any, found: Any) -> Differences | None:
    """Return how our run of a program differs; None if Lightning alone refuses the program."""
    if isinstance(expected, ForkError):
        return None if isinstance(found, ForkError) else {f"only Lightning fails: {last_line(expected)}": ""}
    if isinstance(found, ForkError):
        return {f"fails: {last_line(found)}": str(found)}
    found = [event for event in found if event[0] != "run"]
    differences: Differences = {}
    calls = [[event[:2] for event in events if event[1] in CHECKPOINT_HOOKS] for events in (expected, found)]
    if calls[0] != calls[1]:
        differences["checkpoint hooks"] = f"{calls[0]} / {calls[1]}"
    expected, found = ([e for e in events if e[1] not in CHECKPOINT_HOOKS] for events in (expected, found))
    same = 0
    for a, b in zip(expected, found, strict=False):
        if a[:3] != b[:3]:
            break
        same += 1
    if same < max(len(expected), len(found)):
        names = [". ".join(map(str, e[same][:3])) if same < len(e) else "end" for e in (expected, found)]
        where = ". ".join(map(str, expected[same - 1][:3])) if same else "start"
        hooks = [hide_numbers(name) for name in names]
        differences[f"order: {hooks[0]} / {hooks[1]}"] = f"call {same}, after {where}: {names[0]} / {names[1]}"
    pairs = list(zip(expected[:same], found[:same], strict=True))
    ends = [{e[1]: e for e in events if e[6] == "end"} for events in (expected, found)]
    if same < max(len(expected), len(found)):
        pairs += [(ends[0][name], ends[1][name]) for name in ends[0] if name in ends[1]]
    for number, (a, b) in enumerate(pairs):
        for kind, one, other in differing(a, b):
            differences.setdefault(kind, f"call {number}, {a[0]}.{a[1]} {a[3]}: {one} / {other}")
    return without_effects(differences)


def differing(a: tuple[Any, ...], b: tuple[Any, ...]) -> Any:
    """Yield the kind and the values of each difference between two calls of the same hook."""
    if a[3] != b[3]:
        yield "epoch and step", a[3], b[3]
    if a[4] != b[4]:
        yield f"rows: {a[2]}", a[4], b[4]
    if a[5] != b[5]:
        yield f"arguments: {a[1]}", a[5], b[5]
    one, other = a[7], b[7]
    if a[6] == "random" and one != other:
        yield "random numbers", one, other
    if not isinstance(one, dict) or not isinstance(other, dict):
        return
    for key in one:
        if key.endswith("_metrics") and isinstance(one[key], dict):
            if one[key].keys() != other[key].keys():
                yield f"names in {key}", sorted(one[key]), sorted(other[key])
            values = {n: v for n, v in one[key].items() if n in other[key] and not equal(v, other[key][n])}
            if values:
                yield f"values in {key}", values, {n: other[key][n] for n in values}
        elif key == "trainer":
            yield from differing((*a[:3], None, None, None, "trainer", one[key]), (*b[:3], None, None, None, "", other[key]))
        elif one[key] != other[key]:
            prefix = a[6] + "." if a[6] != "end" else ""
            yield f"{prefix}{key}", one[key], other[key]


def equal(a: Any, b: Any) -> bool:
    """Return whether two metrics are equal; nan equals itself."""
    return bool(a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)))


def without_effects(differences: Differences) -> Differences:
    """Leave out what follows from another difference: other rows or random numbers give other weights and values."""
    causes = [kind for kind in differences if kind.startswith(("rows", "random", "order"))]
    effects = ("arguments", "weights", "values in")
    return {k: v for k, v in differences.items() if not (causes and k.startswith(effects))}


def last_line(error: ForkError) -> str:
    """Return the last line of an error, without numbers."""
    return hide_numbers(str(error).strip().rpartition("\n")[2])[:150]


def hide_numbers(text: str) -> str:
    """Return a text with N instead of numbers."""
    return re.sub(r"\d+", "N", text)
