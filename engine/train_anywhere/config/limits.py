"""Rules for values of the configuration: `Annotated[float, Range(above=0)]`.

`train_anywhere.config.strict` calls a rule with the converted value. A rule returns a value to continue with and the problem ("" if there
is none). An allowed value replaces a bad one, so that the checks of other keys can run.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """A finite number between bounds.

    Args:
        at_least, at_most: inclusive bounds.
        above, below: exclusive bounds.
        hint: what to type instead, the end of the message.
    """

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    hint: str = ""

    def __call__(self, value: float) -> tuple[float, str]:
        """Return the value and "", or an allowed value and the problem."""
        least, most = self.at_least, self.at_most
        broken = {
            "must be a finite number": isinstance(value, float) and not math.isfinite(value),
            f"must be at least {least}" if least else "must not be negative": least is not None
            and value < least,
            f"must be above {self.above}": self.above is not None and value <= self.above,
            f"must be at most {most}": most is not None and value > most,
            f"must be below {self.below}": self.below is not None and value >= self.below,
        }
        words = next((words for words, is_broken in broken.items() if is_broken), "")
        if not words:
            return value, ""
        return type(value)(1 if least is None else least), words + (f"; {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Items:
    """A list with a certain number or order of items.

    Args:
        count: the exact number; None: at least one item.
        ascending: each item is larger than the one before; such a list may be empty.
        example: a valid list, as typed.
    """

    count: int | None = None
    ascending: bool = False
    example: str = ""

    def __call__(self, values: Sequence[Any]) -> tuple[Sequence[Any], str]:
        """Return the list, and the problem or ""."""
        words = ""
        if self.ascending:
            words = "must be in ascending order" if list(values) != sorted(set(values)) else ""
        elif self.count is not None and len(values) != self.count:
            words = f"must have {self.count} items"
        elif not values:
            words = "must have at least one item"
        return values, words and words + f", such as {self.example}"


@dataclass(frozen=True)
class Span:
    """A range of counts in Slurm's notation, 2-4."""

    at_most: int
    words = "a range such as 2-4"

    def __call__(self, value: str) -> tuple[str, str]:
        """Return the range and "", or "1-1" and the problem."""
        found = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", value)
        if not found:
            return "1-1", "is not a whole number, nor a range such as 2-4"
        least, most = map(int, found.groups())
        if not 1 <= least <= most <= self.at_most:
            return "1-1", f"must go from a smaller to a larger count, from 1 to {self.at_most}"
        return value, ""


def is_pattern(value: str) -> tuple[str, str]:
    """Return a regular expression and "", or one that matches everything and the problem."""
    try:
        re.compile(value)
    except re.error as error:
        return ".*", f"is not a regular expression ({error}); use one such as backbone.*"
    return value, ""


@dataclass(frozen=True)
class Duration:
    """A time as in Lightning, DD:HH:MM:SS, or as in Slurm, HH:MM:SS or D-HH:MM:SS."""

    words = "a time such as 00:12:00:00 (DD:HH:MM:SS)"

    def __call__(self, value: str) -> tuple[str, str]:
        """Return the time and "", or an allowed one and the problem."""
        found = _DURATION.fullmatch(value)
        total = duration_seconds(value) if found else 0
        if not (found and total):
            form = 'days:hours:minutes:seconds, with quotes in YAML: "00:12:00:00"'
            return "1:00:00", f"is not a time above 0; use {form}"
        if max(int(part) for part in found.groups()[2:]) < 60:
            return value, ""
        hours, minutes = total // 3600, total // 60 % 60
        shown = f"{hours // 24:02}:{hours % 24:02}:{minutes:02}:{total % 60:02}"
        return "1:00:00", f'has minutes or seconds above 59; use {shown}, with quotes in YAML: "{shown}"'


_DURATION = re.compile(r"(?:([0-9]{1,5})[:-])?([0-9]{1,5}):([0-9]{1,5}):([0-9]{1,5})")


def duration_seconds(value: str) -> int:
    """Return the seconds of a `Duration`."""
    days, hours, minutes, seconds = (int(part or 0) for part in _DURATION.fullmatch(value).groups())  # type: ignore[union-attr]
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def span_bounds(value: int | str) -> tuple[int, int]:
    """Return the smallest and the largest number of a count or a range of counts."""
    least, _, most = str(value).partition("-")
    return int(least), int(most or least)


MAX_COUNT = 2**31 - 1
"""The largest count: the largest signed 32-bit integer, which every library accepts."""

Count = Annotated[int, Range(at_least=1, at_most=MAX_COUNT)]
Epochs = Annotated[float, Range(at_least=0, at_most=MAX_COUNT)]
Probability = Annotated[float, Range(at_least=0, below=1)]
