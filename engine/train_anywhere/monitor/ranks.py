"""What the ranks do, as the side process of their node sees it: RUN/monitor/ranks-<host>.json.

Ages are computed on the node whose clock they are of; clocks of two nodes are never compared.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.plain_json import dumps, loads
from train_anywhere.files.removal import remove
from train_anywhere.monitor import heartbeat
from train_anywhere.monitor.heartbeat import PLACES, Record
from train_anywhere.runs.folder import RunDir

GONE, ENDED = "gone", "ended"
"""Besides the letters of /proc: the process ended in the middle of its work, or after it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank at one moment.

    Attributes:
        host: its node.
        process: the letter that /proc shows, such as T for stopped, or `GONE`, or `ENDED`.
        seconds: since the section began.
        silent: seconds since the rank last wrote.
        clock: the node's monotonic seconds at this moment, for differences on this node.
        section ... beats: see `Record`.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    started: int
    stacks: int
    process: str
    section: str
    place: str
    turn: int
    batch: int
    step: int
    seconds: float
    silent: float
    longest: float
    own: float
    data: float
    trained: int
    beats: int
    clock: float

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """How far it is: all ranks pass the same places in the same order."""
        return self.step, self.turn, self.batch, PLACES.index(self.place)

    @property
    def ended(self) -> bool:
        """It has done all its work: nobody waits for it."""
        return self.process == ENDED


class NodeRanks:
    """The ranks of this node.

    Args:
        host: the node's name.
    """

    def __init__(self, run: RunDir, host: str) -> None:
        self.run, self.host = run, host
        self.place = heartbeat.place_of(run)
        self.known: dict[int, Seen] = {}
        self._number = 0

    def look(self) -> list[Seen]:
        """All ranks that have come so far, by number; those of an earlier start of the run are not counted."""
        found = {}
        for path in self.place.path.glob("rank-*[0-9]"):
            if record := heartbeat.read(path):
                process = process_state(record.pid, record.started)
                if process != GONE or record.rank in self.known:
                    found[record.rank] = seen(record, self.host, process)
        for rank in self.known.keys() - found.keys():
            found[rank] = _without_heartbeat(self.known[rank])
        self.known = found
        return [found[rank] for rank in sorted(found)]

    def write(self) -> None:
        """Tell the other nodes. Raises OSError: the disk refuses."""
        self._number += 1
        make_folder(self.run.monitor)
        ranks = [asdict(self.known[rank]) for rank in sorted(self.known)]
        content = {"host": self.host, "number": self._number, "ranks": ranks}
        write_atomic(self.run.monitor / f"ranks-{self.host}.json", dumps(content))

    def close(self) -> None:
        """Remove what killed ranks have left in the node's memory, if none lives there any more."""
        if all(seen.process in (GONE, ENDED) for seen in self.look()):
            remove(self.place)


class OtherNodes:
    """What the side processes of the other nodes have written, read by that of the first one.

    Args:
        own: the name of this node.
        every: seconds between two readings, as often as the nodes write.
    """

    def __init__(self, run: RunDir, own: str, every: float) -> None:
        self.folder, self.own, self.every = run.monitor, own, every
        self.quiet = 3 * every + 10  # a shared disk may show a new file late
        self._changed: dict[str, tuple[Any, float]] = {}
        self._newest: list[Seen] = []
        self._looked = 0.0
        self._old = {path.name: _number(read_json(path)) for path in self._files()}

    def look(self) -> list[Seen]:
        """The ranks of the other nodes, read again every `every` seconds."""
        if time.monotonic() - self._looked >= self.every:
            self._newest, self._looked = self._read(), time.monotonic()
        return self._newest

    def _read(self) -> list[Seen]:
        """Of a node that no longer writes, all ranks are as silent as it is."""
        now, found = time.monotonic(), []
        for path in self._files():
            content = read_json(path)
            number = _number(content)
            if self._old.get(path.name) == number:  # an earlier start wrote it
                continue
            self._old.pop(path.name, None)
            known, since = self._changed.get(path.name, (None, now))
            if known != number:
                known, since = self._changed[path.name] = number, now
            late = now - since if now - since > self.quiet else 0.0
            with suppress(TypeError, KeyError):
                ranks = [Seen(**fields) for fields in content["ranks"]]
                if late:
                    ranks = [replace(r, silent=r.silent + late, seconds=r.seconds + late) for r in ranks]
                found += ranks
        return found

    def _files(self) -> Iterator[Path]:
        return (p for p in self.folder.glob("ranks-*.json") if p.name != f"ranks-{self.own}.json")


def seen(record: Record, host: str, process: str) -> Seen:
    """A heartbeat, with ages as of now."""
    now = time.monotonic()
    fields = asdict(record)
    began, beat = fields.pop("began"), fields.pop("beat")
    if process == GONE and record.section == "end":
        process = ENDED
    return Seen(host=host, process=process, seconds=now - began, silent=now - beat, clock=now, **fields)


def _without_heartbeat(last: Seen) -> Seen:
    """A rank removes its heartbeat when it ends; one that ended between two looks was still at work at the last one."""
    if process_state(last.pid, last.started) == GONE or last.section == "end":
        return replace(last, process=ENDED)
    return last


def process_state(pid: int, started: int) -> str:
    """The letter that /proc shows for a process, such as R, S, D or T; `GONE` if it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return GONE
    return GONE if words[0] in "ZX" or int(words[19]) != started else words[0]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it can't be read."""
    try:
        content = loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def short(host: str) -> str:
    """A node's name without its domain: schedulers and the system write it either way."""
    return host.partition(".")[0]


def mappings(value: object) -> list[dict[str, Any]]:
    """The objects in a list of JSON; empty for anything else."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _number(content: dict[str, Any]) -> Any:
    return content.get("number")
