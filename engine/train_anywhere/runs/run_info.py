"""Whether run.json holds what this project writes there: the kinds of values that others compute with.

A value of another kind would end a command that reads it with an error of its own, such as `jobs.py list` for all runs because of one.
Keys that are not named here, and metrics, may hold anything: older and newer versions of this project have others.
"""

from collections.abc import Callable, Mapping

Kind = Callable[[object], bool]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _numbers(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_number, value.values()))


INFO: dict[str, Kind] = {
    **dict.fromkeys(("world_size", "restarts", "epoch", "step"), _whole),
    **dict.fromkeys(("state", "framework", "strategy", "launch", "cluster", "started", "ended", "checkpoint", "unit"), _text),
    **dict.fromkeys(("hosts", "job_ids"), _texts),
    "rate": _number,
    "metrics": lambda value: isinstance(value, Mapping),
}  # fmt: skip
"""Of run.json."""

ATTEMPT: dict[str, Kind] = {
    **dict.fromkeys(("step", "from_step", "devices"), _whole),
    **dict.fromkeys(("started", "until", "allocated", "ended_by", "job"), _text),
    "hosts": _texts,
    "seconds": _numbers,
}
"""Of each attempt in it."""


def is_info(content: object, attempts: str) -> bool:
    """Whether this can be a run.json; `attempts` is the key of its attempts."""
    if not isinstance(content, dict) or not _fits(content, INFO):
        return False
    listed = content.get(attempts, [])
    return isinstance(listed, list) and all(map(is_attempt, listed))


def is_attempt(content: object) -> bool:
    """Whether this can be an attempt."""
    return isinstance(content, dict) and _fits(content, ATTEMPT)


def _fits(content: Mapping[str, object], kinds: Mapping[str, Kind]) -> bool:
    """Whether each known key has a value of its kind, or none."""
    return all(content.get(key) is None or fits(content[key]) for key, fits in kinds.items())
