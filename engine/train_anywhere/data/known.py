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


def too_large(length: int, batch_size: int, world_size: int) -> str:
    """Return the message for a global batch that is larger than the training split; "" if it is not."""
    if batch_size <= length:
        return ""
    largest = length // world_size * world_size
    use = f"use data.batch_size={largest} or less" if largest else f"use {length} ranks or fewer"
    return (
        f"data.batch_size={batch_size} is larger than the training split, which has {length} samples; {use}."
    )
