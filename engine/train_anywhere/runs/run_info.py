"""Validation of run.json: types of the values that commands compute with.

A value of another type would crash a command that reads it: one damaged run would fail `jobs.py list` for all runs. Metrics and
keys that are not named here may hold anything, because other versions of this project have other keys.
"""

from collections.abc import Callable, Mapping

Check = Callable[[object], bool]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_string_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_string, value))


def _is_number_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_number, value.values()))


INFO: dict[str, Check] = {
    **dict.fromkeys(("world_size", "restarts", "epoch", "step"), _is_integer),
    **dict.fromkeys(("state", "framework", "strategy", "launch", "cluster", "started", "ended", "checkpoint"), _is_string),
    **dict.fromkeys(("unit", "ended_by"), _is_string),
    **dict.fromkeys(("hosts", "job_ids"), _is_string_list),
    "rate": _is_number,
    "metrics": lambda value: isinstance(value, Mapping),
}  # fmt: skip
"""Checks of the values in run.json."""

ATTEMPT: dict[str, Check] = {
    **dict.fromkeys(("step", "from_step", "devices"), _is_integer),
    **dict.fromkeys(("started", "until", "allocated", "ended_by", "reason", "job"), _is_string),
    "hosts": _is_string_list,
    "seconds": _is_number_mapping,
}
"""Checks of the values in each attempt."""


def is_info(content: object, attempts: str) -> bool:
    """Return whether `content` can be a run.json; `attempts` is the key of its attempts."""
    if not isinstance(content, dict) or not _fits(content, INFO):
        return False
    listed = content.get(attempts, [])
    return isinstance(listed, list) and all(map(is_attempt, listed))


def is_attempt(content: object) -> bool:
    """Return whether `content` can be an attempt."""
    return isinstance(content, dict) and _fits(content, ATTEMPT)


def _fits(content: Mapping[str, object], kinds: Mapping[str, Check]) -> bool:
    """Return whether the value of each known key passes its check or is missing."""
    return all(content.get(key) is None or fits(content[key]) for key, fits in kinds.items())
