"""Requests of `jobs.py` to a run that trains: small files in RUN/monitor, which a thread of rank 0 or the monitor of a node reads.

save.json     an id: rank 0 requests a checkpoint; saved.json has the id and the step of that checkpoint
profile.json  a number, ranks and steps: these ranks profile the next steps
debug.json    an id: the monitor of each node writes debug-<host>.json, with the id and the stacks of its ranks

profile/rank-<N>.json in the run folder has the slowest operations of the profiled steps.

No run is waiting for anything if the file is missing, holds no id, or holds one that was answered before.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_anywhere.files.plain_json import read_json
from train_anywhere.monitor.live import write
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


SAVE, SAVED, DEBUG, PROFILE = "save.json", "saved.json", "debug.json", "profile.json"

MAX_NUMBER = 1 << 15
"""Limit of the number of a request to profile, which the ranks exchange as a float of any type."""


class Requests:
    """The requests to one training, on rank 0.

    Args:
        run: the run folder; None on other ranks, and for a run that writes nothing.

    Attributes:
        save: id of a request that waits for a checkpoint; empty if there is none.
        profile: number of a request to profile steps, of which the ranks do not know yet; 0 if there is none.
    """

    def __init__(self, run: Path | None) -> None:
        self._folder = run and run / "monitor"
        self.save = self._answered = ""
        self.profile = self._profiled = 0

    def poll(self) -> None:
        """Read the requests; called by a thread every few seconds."""
        if self._folder and (asked := read_id(self._folder / SAVE)) not in ("", self.save, self._answered):
            if asked == read_id(self._folder / SAVED):  # answered before the run was resumed
                self._answered = asked
            else:
                self.save = asked
        if self._folder:
            number = read_json(self._folder / PROFILE).get("number")
            if isinstance(number, int) and 0 < number < MAX_NUMBER and number != self._profiled:
                self._profiled = number
                # a killed command leaves its request to the next attempt of the run
                if all(one.number != number for one in read_profiles(RunDir(self._folder.parent))):
                    self.profile = number

    def saved(self, step: int) -> None:
        """Answer that a checkpoint of this step is being written; called by the training thread after each checkpoint."""
        if self._folder and (asked := self.save):
            self._answered, self.save = asked, ""
            with suppress(OSError):  # the command then reports that it got no answer
                write(self._folder / SAVED, {"id": asked, "step": step})


def read_id(path: Path) -> str:
    """Return the id in a request or an answer; empty if there is none."""
    found = read_json(path).get("id")
    return found if isinstance(found, str) else ""


def send(path: Path) -> str:
    """Write a request with a new id, and return the id. Raises OSError."""
    write(path, {"id": (sent := uuid.uuid4().hex)})
    return sent


def withdraw(path: Path, sent: Mapping[str, Any]) -> None:
    """Empty a request with this content, unless another one has replaced it."""
    if read_json(path) == sent:
        with suppress(OSError):
            write(path, {})
