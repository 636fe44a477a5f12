"""Differences between the events of two runs of a program."""

import math
import re
from typing import Any

from engine.tests.differential.forks import ForkError

CHECKPOINT_HOOKS = ("on_save_checkpoint", "on_load_checkpoint", "state_dict", "load_state_dict")
SETUP_HOOKS = ("prepare_data", "setup", "configure_callbacks", "configure_model", "train_dataloader", "val_dataloader",
               "test_dataloader", "teardown")  # fmt: skip
Differences = dict[str, str]
"""Kinds of differences, each with an example: both values."""
Events = list[tuple[Any, ...]]


def compare(expected: Any, found: Any) -> Differences | None:
    """Return the differences of our run of a program. None if plain Lightning refuses it."""
    if isinstance(expected, ForkError):
        return None if isinstance(found, ForkError) else {f"only Lightning fails: {last_line(expected)}": ""}
    if isinstance(found, ForkError):
        return {f"fails: {last_line(found)}": str(found)}
    expected, found = ([event for event in events if event[0] != "run"] for events in (expected, found))
    differences: Differences = {}
    if any(event[1] in CHECKPOINT_HOOKS and event[6] == "logger" for event in found):  # its rows are as many
        expected, found = ([e for e in events if e[0] != "CSVLogger"] for events in (expected, found))
    calls = [with_hooks(events, CHECKPOINT_HOOKS) for events in (expected, found)]
    if calls[0] != calls[1]:
        differences["checkpoint hooks"] = f"{calls[0]} / {calls[1]}"
    expected, found = without_hooks(expected, CHECKPOINT_HOOKS), without_hooks(found, CHECKPOINT_HOOKS)
    same = count_same(expected, found)
    if same < max(len(expected), len(found)) and {*hooks_at(expected, found, same)} & {*SETUP_HOOKS}:
        calls = [with_hooks(events, SETUP_HOOKS) for events in (expected, found)]
        where = [
            event[:3] if event else "end" for event in (*expected[same : same + 1], *found[same : same + 1])
        ]
        differences["order: setup and loaders"] = f"{calls[0]} / {calls[1]}; {where}"
        expected, found = without_hooks(expected, SETUP_HOOKS), without_hooks(found, SETUP_HOOKS)
        same = count_same(expected, found)
    complete = same == max(len(expected), len(found))
    if not complete:
        names = [f"{e[same][1]} ({e[same][2]})" if same < len(e) else "end" for e in (expected, found)]
        after = f"{expected[same - 1][1]}" if same else "start"
        differences[f"order: {names[0]} / {names[1]}"] = (
            f"call {same}, after {after}: {names[0]} / {names[1]}"
        )
    pairs = list(zip(expected[:same], found[:same], strict=True))
    if not complete:
        ends = [{e[1]: e for e in events[same:] if e[6] == "end"} for events in (expected, found)]
        pairs += [(ends[0][name], ends[1][name]) for name in ends[0] if name in ends[1]]
    for number, (a, b) in enumerate(pairs):
        for kind, one, other in differing(a, b):
            differences.setdefault(kind, f"call {number}, {a[0]}.{a[1]} {a[3]}: {one} / {other}")
    return without_effects(differences)


def with_hooks(events: Events, hooks: tuple[str, ...]) -> list[str]:
    """Return the owner and name of each call of these hooks."""
    return [f"{event[0]}.{event[1]}" for event in events if event[1] in hooks]


def without_hooks(events: Events, hooks: tuple[str, ...]) -> Events:
    """Return the calls of other hooks."""
    return [event for event in events if event[1] not in hooks]


def count_same(expected: Events, found: Events) -> int:
    """Return the number of calls before the first one of another hook, owner or stage."""
    pairs = enumerate(zip(expected, found, strict=False))
    return next((n for n, (a, b) in pairs if a[:3] != b[:3]), min(len(expected), len(found)))


def hooks_at(expected: Events, found: Events, number: int) -> list[str]:
    """Return the names of the hooks at a place."""
    return [events[number][1] for events in (expected, found) if number < len(events)]


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
            yield from differing(
                (*a[:3], None, None, None, "trainer", one[key]), (*b[:3], None, None, None, "", other[key])
            )
        elif one[key] != other[key]:
            prefix = a[6] + "." if a[6] != "end" else ""
            yield f"{prefix}{key}", one[key], other[key]


def equal(a: Any, b: Any) -> bool:
    """Return whether two metrics are equal. NaN equals itself."""
    return bool(a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)))


def without_effects(differences: Differences) -> Differences:
    """Leave out consequences of another difference, such as weights after different rows."""
    causes = [kind for kind in differences if kind.startswith(("rows", "random", "order"))]
    effects = ("arguments", "weights", "values in")
    return {k: v for k, v in differences.items() if not (causes and k.startswith(effects))}


def last_line(error: ForkError) -> str:
    """Return the last line of an error, without numbers."""
    return hide_numbers(str(error).strip().rpartition("\n")[2])[:150]


def hide_numbers(text: str) -> str:
    """Return a string with N instead of numbers."""
    return re.sub(r"\d+", "N", text)
