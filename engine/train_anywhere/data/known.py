"""Facts about a data set that are known before a run starts. A submission imports this module, so it needs no numpy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Known:
    """The facts and problems of a data set that a `_check_` function finds before it is opened.

    Attributes:
        length: number of training rows; None: not known.
        facts: the known ones of `train_anywhere.data.dataset.Splits`.
        problems: a sentence for each reason why training can't start.
        later: names of the facts that are known once the data set is opened; None: any names.
    """

    length: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    later: tuple[str, ...] | None = None
