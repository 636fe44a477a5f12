"""Rules of numbers and lists: what is refused, in which words, and what takes its place."""

import math

from train_anywhere.config.limits import Items, Range


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


def test_a_value_in_range_is_kept() -> None:
    for value in (0, 0.5, 1, 1.0):
        assert Range(at_least=0, at_most=1)(value) == (value, "")


def test_lists() -> None:
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
