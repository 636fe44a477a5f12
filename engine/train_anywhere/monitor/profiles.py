"""Read the slowest operations of profiled steps, RUN/profile/rank-<N>.json, which `training/profile.py` writes."""

from contextlib import suppress
from dataclasses import dataclass

from train_anywhere.files.plain_json import read_json
from train_anywhere.runs.folder import RunDir


@dataclass(frozen=True)
class Profile:
    """The newest profile of a rank.

    Attributes:
        rank: number of the rank.
        number: number of the request of `jobs.py profile`; 0 for `trainer.profiler`.
        first, last: the first and the last optimizer step.
        operations: name, number of calls and milliseconds of the slowest operations.
    """

    rank: int
    number: int
    first: int
    last: int
    operations: tuple[tuple[str, int, float], ...]


def read_profiles(run: RunDir) -> list[Profile]:
    """Return the profiles of a run by rank; what can't be read is left out."""
    found = []
    for path in (run.path / "profile").glob("rank-*.json"):
        content = read_json(path)
        with suppress(KeyError, TypeError, ValueError):
            first, last = map(int, content["steps"])
            operations = tuple(
                (str(name), int(calls), float(ms)) for name, calls, ms in content["operations"]
            )
            found.append(Profile(int(content["rank"]), int(content["number"]), first, last, operations))
    return sorted(found, key=lambda one: one.rank)


def operation_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """Return the milliseconds per step, the calls and the name of each operation, for a table."""
    steps = max(1, profile.last - profile.first + 1)
    return [(f"{ms / steps:.3f}", str(calls), name) for name, calls, ms in profile.operations]
