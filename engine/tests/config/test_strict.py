"""Trees become dataclasses strictly, limits are applied, and all problems are found."""

import datetime
import math
from dataclasses import dataclass
from typing import Annotated, Literal

from train_anywhere.config.limits import Items, Range
from train_anywhere.config.strict import build, describe, did_you_mean


@dataclass(frozen=True)
class Red:
    name: Literal["red"]
    depth: int


@dataclass(frozen=True)
class Blue:
    name: Literal["blue", "navy"]
    pale: bool


@dataclass(frozen=True)
class Inner:
    rate: float
    sizes: list[int]


@dataclass(frozen=True)
class Outer:
    count: int | None
    word: str
    precision: Literal["32", "16"]
    inner: Inner
    colour: Red | Blue


GOOD = {
    "count": None,
    "word": "a",
    "precision": 32,
    "inner": {"rate": 1, "sizes": [1, 2]},
    "colour": {"name": "navy", "pale": True},
}


def problems_of(**changes: object) -> list[str]:
    problems: list[str] = []
    build(Outer, {**GOOD, **changes}, problems)
    return problems


def test_builds_and_converts() -> None:
    problems: list[str] = []
    made = build(Outer, GOOD, problems)
    assert problems == []
    assert made == Outer(None, "a", "32", Inner(1.0, [1, 2]), Blue("navy", True))
    assert isinstance(made.inner.rate, float)


def test_all_problems_at_once() -> None:
    found = problems_of(count="x", precision="320", inner={"rate": "fast", "sizes": [1, "b"]}, wrod="a")
    assert len(found) == 5
    assert any("'wrod' is not a key of the configuration. Did you mean 'word'?" in p for p in found)
    assert any("count='x' is not a whole number or null" in p for p in found)
    assert any("precision='320' is not one of 32, 16. Did you mean '32'?" in p for p in found)
    assert any("inner.rate='fast' is not a number" in p for p in found)
    assert any("inner.sizes[1]='b' is not a whole number" in p for p in found)


COLOUR = "colour={} is not a choice. Known: red, blue, navy."
ONE: list[tuple[dict[str, object], list[str]]] = [
    ({"count": True}, ["count='True' is not a whole number or null."]),
    ({"colour": {"name": "blue", "pale": 1}}, ["colour.pale='1' is not true or false."]),
    ({"colour": {"name": "bleu", "pale": True}}, ["colour=bleu is not a choice. Did you mean 'blue'?"]),
    *(({"colour": {"name": name, "pale": True}}, [COLOUR.format(name)]) for name in ([], {}, [[]], 7)),
    ({"word": ""}, ["word='' is empty."]),
    ({"word": " \t"}, ["word=' \t' is empty."]),
    ({"word": "a\0b"}, ["word='a\0b' contains a character that names, paths and options can't have."]),
    ({"word": "\udcff"}, ["word='\\udcff' contains a character that names, paths and options can't have."]),
    ({"word": datetime.date(2024, 1, 1)}, ["word='2024-01-01' is not a string; put it in quotes."]),
    ({"word": b"word"}, ["word='b'word'' is not a string."]),
    ({"word": ["word"]}, ["word='['word']' is not a string."]),
    ({"inner": {"rate": 1, "sizes": [None, {}]}}, [
        "inner.sizes[0]=null is not a whole number.", "inner.sizes[1]='{}' is not a whole number."]),
]  # fmt: skip
"""Changes of `GOOD`, and the problems."""


def test_one_sentence_for_each_problem() -> None:
    assert [problems_of(**changes) for changes, _ in ONE] == [says for _, says in ONE]
    problems: list[str] = []
    assert build(Outer, {k: v for k, v in GOOD.items() if k != "word"}, problems) is None
    assert problems == ["'word' is missing; give it a string."]
    assert (
        "Did you mean 'colour.pale'?" in problems_of(colour={"name": "blue", "pale": True, "pales": True})[0]
    )


def test_suggestions() -> None:
    assert did_you_mean("kears", ["keras", "lightning"]) == ". Did you mean 'keras'?"
    assert did_you_mean("zzz", ["a", "b"]) == ". Known: a, b."
    assert did_you_mean("zzz", []) == "."
    assert (describe(int | None), describe(Red | Blue)) == ("a whole number or null", "a section of keys")


@dataclass(frozen=True)
class Limited:
    rate: Annotated[float, Range(above=0)]
    size: Annotated[int, Range(at_least=1, at_most=8)] | Literal["auto"] | None


def test_rules_are_applied_and_an_allowed_value_takes_the_place() -> None:
    problems: list[str] = []
    made = build(Limited, {"rate": -1, "size": 9}, problems)
    assert problems == ["rate=-1 must be above 0.", "size=9 must be at most 8."]
    assert made == Limited(1.0, 1)
    for size in ("auto", None, 8):
        assert build(Limited, {"rate": 1, "size": size}, []) == Limited(1.0, size)


def test_a_value_out_of_range_is_reported_and_replaced() -> None:
    refused: list[tuple[Range, float, str]] = [
        (Range(at_least=1), 0, "must be at least 1"),
        (Range(at_least=0), -1, "must not be negative"),
        (Range(above=0), 0.0, "must be above 0"),
        (Range(at_most=1), 1.5, "must be at most 1"),
        (Range(at_least=0, below=1), 1.0, "must be below 1"),
        (Range(), math.nan, "must be a finite number"),
        (Range(above=0), math.inf, "must be a finite number"),
        (Range(above=0, hint="null turns it off"), -math.inf, "must be a finite number; null turns it off"),
        (Range(at_most=9), 1 << 2000, "must be at most 9"),
    ]
    for rule, value, says in refused:
        stands_in, words = rule(value)
        assert words == says
        assert rule(stands_in) == (stands_in, "")
        assert type(stands_in) is type(value)
    assert [Range(at_least=0, at_most=1)(value) for value in (0, 0.5, 1, 1.0)] == [
        (0, ""), (0.5, ""), (1, ""), (1.0, ""),
    ]  # fmt: skip


def test_limits_of_lists() -> None:
    rows: list[tuple[Items, list[float], str]] = [
        (Items(example="[8]"), [], "must have at least one item, such as [8]"),
        (Items(count=2, example="[1,2]"), [1], "must have 2 items, such as [1,2]"),
        (Items(ascending=True, example="[1,2]"), [2, 1], "must be in ascending order, such as [1,2]"),
        (Items(ascending=True, example="[1,2]"), [1, 1], "must be in ascending order, such as [1,2]"),
        (Items(ascending=True), [], ""),
        (Items(count=2), [2, 1], ""),
        (Items(), [0], ""),
    ]
    for rule, values, says in rows:
        assert rule(values) == (values, says)
