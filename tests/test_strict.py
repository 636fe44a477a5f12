"""Trees become dataclasses, strictly; every problem is found, not the first alone."""

from dataclasses import dataclass
from typing import Annotated, Literal

from src.strict import Choice, build, describe, did_you_mean


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
    colour: Annotated[Red | Blue, Choice(Red, Blue)]


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


def test_missing_key_is_named() -> None:
    tree = {k: v for k, v in GOOD.items() if k != "word"}
    problems: list[str] = []
    assert build(Outer, tree, problems) is None
    assert problems == ["'word' is missing; give it a value of type a text."]


def test_booleans_are_not_numbers() -> None:
    assert problems_of(count=True) == ["count='True' is not a whole number or null."]
    assert "pale='1' is not true or false" in problems_of(colour={"name": "blue", "pale": 1})[0]


def test_choice_names_the_nearest() -> None:
    assert problems_of(colour={"name": "bleu", "pale": True}) == [
        "colour=bleu is not a choice. Did you mean 'blue'?"
    ]
    assert "Did you mean 'pale'?" in problems_of(colour={"name": "blue", "pales": True})[0]


def test_suggestions() -> None:
    assert did_you_mean("kears", ["keras", "lightning"]) == ". Did you mean 'keras'?"
    assert did_you_mean("zzz", ["a", "b"]) == ". Known: a, b."
    assert did_you_mean("zzz", []) == "."
    assert describe(int | None) == "a whole number or null"
