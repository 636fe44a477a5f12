"""Status of the ranks, shared between nodes in RUN/monitor/ranks-<host>.json.

Ages are computed on the node whose clock measured them; clocks of different nodes are never compared.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import dumps, read_json, write_with_folder
from train_anywhere.files.removal import remove
from train_anywhere.monitor import heartbeat
from train_anywhere.runs.folder import RunDir

GONE, ENDED = "gone", "ended"
"""Process states in addition to the letters of /proc: the process exited before or after its work was done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStatus:
    """Status of a rank at one moment.

    Attributes:
        pid, started: the process id and its start time, in clock ticks since the node's boot.
        stacks: 1 if the process writes its stacks on SIGUSR2, see `features/hangs/stacks.py`, else 0.
        section, place: a member of `SECTIONS` and one of `PLACES`.
        turn: number of sections entered so far.
        batch: batches done in this section.
        step: optimizer steps done, counted over the whole run.
        longest: longest silence in this section so far, in seconds.
        own: seconds of the rank's own work in all training batches so far: data wait, and compute until it waits for other ranks.
        data: the part of `own` spent waiting for data, in seconds.
        trained: training batches so far.
        beats: number of writes in sections of this name.
        process: the state letter of /proc, such as T for stopped, or `GONE` or `ENDED`.
        seconds: seconds since the section began.
        silent: seconds since the last heartbeat.
        clock: seconds of the node's monotonic clock at this moment, for differences on this node.
    """

    rank: int
    world_size: int
    pid: int
    started: int
    stacks: int
    section: str
    place: str
    turn: int
    batch: int
    step: int
    longest: float
    own: float
    data: float
    trained: int
    beats: int
    host: str
    process: str
    seconds: float
    silent: float
    clock: float

    @property
    def progress(self) -> tuple[int, int, int, int]:
        """Progress of the rank: all pass the same places in the same order."""
        return self.step, self.turn, self.batch, heartbeat.PLACES.index(self.place)

    @property
    def ended(self) -> bool:
        """Whether the rank has done all its work, so that no other rank waits for it."""
        return self.process == ENDED


class NodeRanks:
    """Reader of the heartbeats of the ranks on the node `host`."""

    def __init__(self, run: RunDir, host: str) -> None:
        self.run, self.host = run, host
        self.place = heartbeat.place_of(run)
        self.known: dict[int, RankStatus] = {}
        self._number = 0

    def read(self) -> list[RankStatus]:
        """Return all ranks that have started, by number, without those of earlier starts."""
        found = {}
        for path in self.place.path.glob("rank-*[0-9]"):
            if record := heartbeat.read(path):
                now, number = time.monotonic(), record["rank"]
                process = process_state(record["pid"], record["started"])
                if process == GONE and number not in self.known:
                    continue
                ages = {"seconds": now - record.pop("began"), "silent": now - record.pop("beat")}
                process = ENDED if process == GONE and record["section"] == "end" else process
                found[number] = RankStatus(host=self.host, process=process, clock=now, **ages, **record)
        for rank in self.known.keys() - found.keys():  # it removes its heartbeat at its end
            last = found[rank] = self.known[rank]
            if process_state(last.pid, last.started) == GONE or last.section == "end":
                found[rank] = replace(last, process=ENDED)
        self.known = found
        return [found[rank] for rank in sorted(found)]

    def write(self) -> None:
        """Write the last read status for the other nodes. Raises OSError."""
        self._number += 1
        ranks = [asdict(self.known[rank]) for rank in sorted(self.known)]
        content = {"host": self.host, "number": self._number, "ranks": ranks}
        write_with_folder(self.run.monitor / f"ranks-{self.host}.json", dumps(content))

    def close(self) -> None:
        """Remove heartbeats that killed ranks left in node memory, if no rank is alive there."""
        if all(rank.process in (GONE, ENDED) for rank in self.read()):
            remove(self.place)


class OtherNodes:
    """Reader of the status files of the other nodes, which these write every `every` seconds, on the first one."""

    def __init__(self, run: RunDir, own: str, every: float) -> None:
        self.folder, self.own, self.every = run.monitor, own, every
        self.quiet = 3 * every + 10  # a shared disk may show new files late
        self._changed: dict[str, tuple[Any, float]] = {}
        self._newest: list[RankStatus] = []
        self._read_at = 0.0
        self._old = {path.name: read_json(path).get("number") for path in self._files()}

    def read(self) -> list[RankStatus]:
        """Return the ranks of the other nodes, reading their files again after `every` seconds."""
        if time.monotonic() - self._read_at >= self.every:
            self._newest, self._read_at = self._read_files(), time.monotonic()
        return self._newest

    def _read_files(self) -> list[RankStatus]:
        """Read all files. If a node no longer writes, its ranks count as silent."""
        now, found = time.monotonic(), []
        for path in self._files():
            content = read_json(path)
            number = content.get("number")
            if self._old.get(path.name) == number:  # a file from an earlier start
                continue
            self._old.pop(path.name, None)
            known, since = self._changed.get(path.name, (None, now))
            if known != number:
                known, since = self._changed[path.name] = number, now
            late = now - since if now - since > self.quiet else 0.0
            with suppress(TypeError, KeyError):
                ranks = [RankStatus(**fields) for fields in content["ranks"]]
                if late:
                    ranks = [replace(r, silent=r.silent + late, seconds=r.seconds + late) for r in ranks]
                found += ranks
        return found

    def _files(self) -> Iterator[Path]:
        return (p for p in self.folder.glob("ranks-*.json") if p.name != f"ranks-{self.own}.json")


def process_state(pid: int, started: int) -> str:
    """Return the state letter of /proc for a process, or `GONE` if it has exited."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return GONE
    return GONE if words[0] in "ZX" or int(words[19]) != started else words[0]


def short(host: str) -> str:
    """Return a node's name without its domain, which some schedulers and systems append."""
    return host.partition(".")[0]


def mappings(value: object) -> list[dict[str, Any]]:
    """Return the objects in a JSON list. Empty for any other value."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
