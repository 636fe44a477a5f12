"""A rank's heartbeat: a small file in the memory of its node, which the rank writes at each step and the node's side process reads.

    /dev/shm/<name>-<user id>-<run id>.ranks/rank-3      see `Record` for what is in it

Writing is one `pack_into` a memory map: no system call, so that no disk and no other process can hold a step back. The writer is
`own`, the heartbeat of this process; before `begin` it writes into memory of its own, so a loop needs no question whether there is one.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from train_anywhere.distributed.topology import Topology
from train_anywhere.files.marked import Place, make
from train_anywhere.files.removal import remove, remove_in
from train_anywhere.monitor.efficiency import Efficiency
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.lock import started

VERSION = 1
SECTIONS = ("start", "step", "validation", "test", "checkpoint", "end")
PLACES = ("", "importing", "meeting", "preparing", "data", "forward", "backward")
"""Where in its section a rank is, in the order of a start and of a step."""

DATA, FORWARD = PLACES.index("data"), PLACES.index("forward")

_LAYOUT = struct.Struct("=IIIIIQIBBQQQdddddQQI")
SIZE = 4096
"""Bytes of the file: one page."""


@dataclass(frozen=True)
class Record:
    """A heartbeat as it was read.

    Attributes:
        rank, world_size: which of how many.
        pid, started: the process, and when it began, in clock ticks since the node's boot.
        stacks: it writes its stacks when SIGUSR2 comes, see `features/hangs/stacks.py`.
        section, place: of `SECTIONS` and `PLACES`.
        turn: sections entered so far.
        batch: batches done in this section.
        step: optimizer steps done, counted as the run counts them.
        began, beat: when the section began and when the rank last wrote, in the node's monotonic seconds.
        longest: the longest silence in this section so far, in seconds.
        own: seconds of the rank's own work in all training batches so far: waiting for data, and computing until it waits for others.
        data: seconds of those that waited for data.
        trained: training batches so far.
        beats: how often the rank has written in sections of this name.
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
    began: float
    beat: float
    longest: float
    own: float
    data: float
    trained: int
    beats: int


_FIELDS = [field.name for field in fields(Record)]


class Heartbeat:
    """Writes the heartbeat of this process; for the training thread alone.

    Attributes:
        waited: seconds that the newest batch was waited for.
        efficiency: of the ranks together.
    """

    def __init__(self) -> None:
        self._map: mmap.mmap | bytearray = bytearray(SIZE)
        self._path: Path | None = None
        self.folder: Place | None = None
        self.rank, self.world_size, self.stacks = 0, 1, 0
        self.section, self.place, self.turn, self.batch, self.step = 0, 0, 0, 0, 0
        self.own = self.data = 0.0
        self.trained = self._number = self._started = 0
        self._pid = os.getpid()
        self.began = self.beat = self._batch_began = time.monotonic()
        self.waited = 0.0
        self.efficiency = Efficiency()
        self._longest, self._beats = [0.0] * len(SECTIONS), [0] * len(SECTIONS)
        self._spent = [0.0] * len(SECTIONS)

    def begin(self, run: RunDir, topology: Topology) -> Path | None:
        """From here on the node can see this rank; returns its file, None where the node's memory takes none."""
        self.__init__()  # type: ignore[misc]
        self.rank, self.world_size = topology.rank, topology.world_size
        self._started = int(started(os.getpid()) or 0)
        with suppress(OSError):
            self.folder = place_of(run)
            make(self.folder, private=True)
            path = self.folder.path / f"rank-{self.rank}"
            remove_in(self.folder, path.name)  # of a killed process
            with open(path, "xb+", buffering=0) as file:
                # not truncate: without free memory that gives a page whose first use kills this process
                file.write(bytes(SIZE))
                self._map = mmap.mmap(file.fileno(), SIZE)
            self._path = path
        self.enter("start", "importing")
        return self._path

    def end(self) -> None:
        """The process is about to end; nobody needs to look at it any more."""
        self.enter("end")
        if self._path and self.folder:
            with suppress(OSError):
                remove_in(self.folder, self._path.name)
            with suppress(FileNotFoundError):  # another rank, which ends at the same time, has removed it
                if not any(name.startswith("rank-") for name in os.listdir(self._path.parent)):
                    remove(self.folder)
            self._path, self._map = None, bytearray(SIZE)

    def enter(self, section: str, place: str = "") -> None:
        """A section begins; all ranks enter the same ones in the same order."""
        self.turn += 1
        self.batch = 0
        self._spent[self.section] += time.monotonic() - self.began
        self.section = SECTIONS.index(section)
        # a silence across sections is of neither
        self.began = self.beat = self._batch_began = time.monotonic()
        self.at(place)

    @property
    def name(self) -> str:
        """Of the present section, in the words that people read: train is what the ranks call step."""
        return "train" if SECTIONS[self.section] == "step" else SECTIONS[self.section]

    def spent(self) -> dict[str, float]:
        """Seconds in each section so far, by its name. Of those of `step`: `data` is the wait for the next batch, and `others`, where it
        was measured, the wait for other ranks.
        """
        seconds = dict(zip(SECTIONS, self._spent, strict=True))
        seconds[SECTIONS[self.section]] += time.monotonic() - self.began
        if self.efficiency.share is not None:
            seconds["others"] = self.efficiency.share * max(0.0, seconds["step"] - self.data)
        return {**seconds, "data": self.data}

    @contextmanager
    def within(self, section: str) -> Iterator[None]:
        """A section inside another one, which goes on after it."""
        before, place = SECTIONS[self.section], PLACES[self.place]
        self.enter(section)
        yield
        self.enter(before, place)

    def at(self, place: str) -> None:
        """The next place within the section."""
        self.place = PLACES.index(place)
        self._write(time.monotonic())

    def fetched(self) -> None:
        """The batch has come: the time since the last one was a wait for data."""
        now = time.monotonic()
        self.waited = now - self._batch_began
        self.data += self.waited
        self.place = FORWARD
        self._write(now)

    def waited_for_data(self, seconds: float, batches: int) -> None:
        """The newest batch was waited for, where the loop can't tell when it came; it stands for so many."""
        self.waited = seconds
        self.data += seconds * batches

    def computed(self, seconds: float | None = None) -> None:
        """What this rank computes in a batch before it waits for others is done: `seconds`, or the time since the last batch."""
        now = time.monotonic()
        self.own += now - self._batch_began if seconds is None else seconds
        self._write(now)

    def trained_batch(self, step: int, batches: int = 1) -> None:
        """So many training batches are done, and `step` optimizer steps."""
        self.step = step
        self.trained += batches
        self.batch += batches
        self.place = DATA
        self._batch_began = now = time.monotonic()
        self._write(now)

    def evaluated_batch(self) -> None:
        """A batch of a validation or test is done."""
        self.batch += 1
        self._write(time.monotonic())

    def _write(self, now: float) -> None:
        section = self.section
        self._longest[section] = max(self._longest[section], now - self.beat)
        self._beats[section] += 1
        self.beat = now
        self._number = number = (self._number + 1) % 2**32
        _LAYOUT.pack_into(
            self._map, 0, number, VERSION, self.rank, self.world_size, self._pid, self._started, self.stacks, section,
            self.place, self.turn, self.batch, self.step, self.began, now, self._longest[section], self.own, self.data,
            self.trained, self._beats[section], number,
        )  # fmt: skip


own = Heartbeat()
"""Of this process, which is one rank."""


def place_of(run: RunDir) -> Place:
    """Where the ranks of a run that are on this node have their heartbeats."""
    memory = Path("/dev/shm")
    root = memory if os.access(memory, os.W_OK) else Path("/tmp")
    name = f"{run.path.parent.name}-{os.getuid()}-{run.id}.ranks"
    return Place(root, (name,), f"heartbeats of run {run.id}")


def read(path: Path) -> Record | None:
    """The heartbeat in a file; None if it can't be read, or is being written at every try."""
    for _ in range(5):
        try:
            content = path.read_bytes()
            first, version, *words, last = _LAYOUT.unpack_from(content)
        except (OSError, struct.error):
            return None
        if first == last and first and version == VERSION:
            if words[5] >= len(SECTIONS) or words[6] >= len(PLACES):
                return None
            words[5:7] = SECTIONS[words[5]], PLACES[words[6]]
            return Record(**dict(zip(_FIELDS, words, strict=True)))
    return None
