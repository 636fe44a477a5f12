"""What is known of a data set before a run starts, by names and headers alone. A submission imports this: no numpy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Staged = Callable[[Path], Path]
"""Where to read a file or folder: its copy on this node's disk, if there is to be one."""


def as_it_is(path: Path) -> Path:
    """The `Staged` that copies nothing."""
    return path


@dataclass(frozen=True)
class Known:
    """What is known beforehand.

    Attributes:
        length: rows to train on; None: not known.
        facts: those of `train_anywhere.data.dataset.Splits` that are known.
        problems: a sentence for each reason why no training could begin.
        later: names of the facts that are known once it is opened; None: there may be any.
    """

    length: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    later: tuple[str, ...] | None = None
