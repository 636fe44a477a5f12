"""What is known of a data set before a run starts, by names and headers alone. A submission imports this: no numpy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Known:
    """What is known beforehand.

    Attributes:
        length: rows to train on; None: not known.
        facts: those of `train_anywhere.data.base.Splits` that are known.
        problems: a sentence for each reason why no training could begin.
        later: names of the facts that are known once it is opened; None: there may be any.
    """

    length: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    later: tuple[str, ...] | None = None
