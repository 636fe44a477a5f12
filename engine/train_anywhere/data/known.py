"""Facts about a data set that are known before a run starts. A submission imports this module, so it needs no numpy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Staged = Callable[[Path], Path]
"""A function that returns where to read a file or folder: the copy on this node's disk with data.stage=true, else the path itself."""


def as_it_is(path: Path) -> Path:
    """Return the path itself: the `Staged` function that copies nothing."""
    return path


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
