"""What a value of the configuration must keep besides its type: declared beside it, `Annotated[float, Range(above=0)]`.

Each of these is called by `src.config.strict` with the converted value, and answers with a value to go on with and what is wrong with
the given one ("" where nothing is): an allowed value stands in, so that the checks of other keys can still speak.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

Rule = Callable[[Any], tuple[Any, str]]
"""From a value to a usable one and the words that follow `key=value` in a sentence."""


@dataclass(frozen=True)
class Range:
    """A finite number between bounds.

    Args:
        at_least, at_most: bounds that are allowed themselves.
        above, below: bounds that are not.
        hint: what to do instead, the end of the sentence.
    """

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    hint: str = ""

    def __call__(self, value: float) -> tuple[float, str]:
        """See the module."""
        words = self.broken(value)
        if not words:
            return value, ""
        stands_in = 1 if self.at_least is None else self.at_least
        return type(value)(stands_in), words + (f"; {self.hint}" if self.hint else "")

    def broken(self, value: float) -> str:
        """Which bound the value does not keep, in words."""
        if isinstance(value, float) and not math.isfinite(value):
            return "must be a finite number"
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least}" if self.at_least else "must not be negative"
        if self.above is not None and value <= self.above:
            return f"must be above {self.above}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most}"
        if self.below is not None and value >= self.below:
            return f"must be below {self.below}"
        return ""


@dataclass(frozen=True)
class Items:
    """How many items a list has, and in which order.

    Args:
        count: exactly so many; None: at least one.
        ascending: each larger than the one before; such a list may be empty.
        example: a list that is right, as it is typed.
    """

    count: int | None = None
    ascending: bool = False
    example: str = ""

    def __call__(self, values: Sequence[Any]) -> tuple[Sequence[Any], str]:
        """See the module."""
        words = ""
        if self.ascending:
            words = "must be in ascending order" if list(values) != sorted(set(values)) else ""
        elif self.count is not None and len(values) != self.count:
            words = f"must have {self.count} items"
        elif not values:
            words = "must have at least one item"
        return values, words and words + f", such as {self.example}"


MOST = 2**31 - 1
"""What any count may be at most: a signed integer of 32 bits, which every library on the way can hold."""

Count = Annotated[int, Range(at_least=1, at_most=MOST)]
Epochs = Annotated[float, Range(at_least=0, at_most=MOST)]
Probability = Annotated[float, Range(at_least=0, below=1)]
