"""JSON that every parser accepts: nan and inf, which JSON does not have, are written as null and refused when read."""

import json
import math
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import read_text

MAX_DIGITS = 20
"""Characters of a 64-bit integer, with its sign."""


def dumps(data: Any) -> str:
    """Return `data` as indented JSON that ends with a newline."""
    return json.dumps(finite(data), indent=2, allow_nan=False) + "\n"


def loads(text: str) -> Any:
    """Parse the output of `dumps`.

    Raises:
        ValueError: the string is not JSON, or contains nan, inf or an integer beyond 64 bits.
    """
    try:
        return json.loads(text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_float)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"{digits[:MAX_DIGITS]}... is too large")
    return int(digits)


def _parse_float(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits} is not finite")
    return number


def finite(data: Any) -> Any:
    """Return the data with nan and inf replaced by None, at any depth."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if it can't be read."""
    try:
        content = loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
