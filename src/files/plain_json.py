"""JSON that every parser accepts: nan and inf, which JSON does not have, are written as null."""

import json
import math
from typing import Any


def dumps(data: Any) -> str:
    """`data` as indented JSON with a newline at its end."""
    return json.dumps(finite(data), indent=2, allow_nan=False) + "\n"


def finite(data: Any) -> Any:
    """The same with None for nan and inf, at any depth."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
