"""JSON that every parser accepts: nan and inf, which JSON does not have, are written as null, and not read."""

import json
import math
from typing import Any

LONGEST = 20
"""Characters of a whole number of 64 bits, with its sign."""


def dumps(data: Any) -> str:
    """`data` as indented JSON with a newline at its end."""
    return json.dumps(finite(data), indent=2, allow_nan=False) + "\n"


def loads(text: str) -> Any:
    """What `dumps` wrote.

    Raises:
        ValueError: it is no JSON, or has numbers that no file of this project has: nan, inf, whole ones beyond 64 bits.
    """
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def _whole(digits: str) -> int:
    if len(digits) > LONGEST:
        raise ValueError(f"{digits[:LONGEST]}... is too large")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits} is not finite")
    return number


def finite(data: Any) -> Any:
    """The same with None for nan and inf, at any depth."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
