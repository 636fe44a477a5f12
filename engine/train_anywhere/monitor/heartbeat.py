"""Heartbeat of a rank: a small file in node memory, for a monitor process there.

    /dev/shm/<name>-<user id>-<run id>.ranks/rank-3      its content: see `FIELDS`

A write is one `pack_into` a memory map, without a system call: no disk and no other process can delay a step. Before `open`
a heartbeat writes to a private buffer, so callers need not check for one.

Efficiency of a run on several ranks: the share of a step without data wait in which a rank does not wait for others.

A rank waits for the slowest rank, and for communication that is not hidden behind the backward pass. This wait is measured in
occasional steps, from the time when a rank has its own gradients to the time when it has their average. The measurement does not
show how far communication slows down the computation itself.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from train_anywhere.distributed.topology import Topology
from train_anywhere.files.removal import OwnedFolder, make_owned, remove, remove_in
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.lock import process_start

EVERY_S, WARM_UP = 1.0, 5
"""Seconds between two measured steps, and batches before the first, which include compilation and the first use of the network."""


class Efficiency:
    """The measured steps.

    Attributes:
        sums: seconds of this rank's measured steps, and those that it waited for other ranks; the reduction of the metrics adds them up.
        value: the efficiency of all ranks, from 0 to 1; None if not measured.
    """

    def __init__(self) -> None:
        self.sums, self._last = [0.0, 0.0], 0.0
        self.value: float | None = None

    def due(self, trained: int) -> bool:
        """Return whether to measure the step that starts now, after `trained` batches."""
        return trained >= WARM_UP and time.monotonic() - self._last >= EVERY_S

    def add_step(self, whole: float, waited: float) -> None:
        """Add a measured step of `whole` seconds, `waited` of which were a wait for other ranks."""
        self.sums = [self.sums[0] + whole, self.sums[1] + min(waited, whole)]
        self._last = time.monotonic()

    def set_sums(self, sums: Sequence[float]) -> None:
        """Set the value from the sums over all ranks."""
        whole, waited = sums
        self.value = round(1 - waited / whole, 4) if whole else None


VERSION = 2
SECTIONS = ("start", "step", "validation", "test", "checkpoint", "end", "program")
PLACES = ("", "importing", "meeting", "preparing", "data", "forward", "backward")
"""Positions of a rank within its section, in the order of a start and of a step."""

DATA, FORWARD = PLACES.index("data"), PLACES.index("forward")

_LAYOUT = struct.Struct("=IIIIIQIBBQQQdddQQddI")
SIZE = 4096
"""Size of the file in bytes: one memory page."""


FIELDS = (
    "rank", "world_size", "pid", "started", "stacks", "section", "place", "turn", "batch", "step", "longest", "own", "data", "trained",
    "beats", "began", "beat",
)  # fmt: skip
"""Values in the file, in their order, see `RankStatus`; `began` and `beat`, in seconds of the node's monotonic clock, are section and last
write."""


class Heartbeat:
    """Writer of this process's heartbeat, for the training thread only.

    Attributes:
        path: path of its file in `folder`; None before `open` and after `close`.
        waited: seconds spent waiting for the newest batch.
        first: seconds of the first training batch; 0 before its end.
    """

    def __init__(self) -> None:
        self._map: mmap.mmap | bytearray = bytearray(SIZE)
        self.path: Path | None = None
        self.folder: OwnedFolder | None = None
        self.rank, self.world_size, self.stacks = 0, 1, 0
        self.section, self.place, self.turn, self.batch, self.step = 0, 0, 0, 0, 0
        self.own = self.data = 0.0
        self.trained = self._number = self._started = 0
        self._pid = os.getpid()
        self.began = self.beat = self._batch_began = time.monotonic()
        self.waited = self.first = 0.0
        self.efficiency = Efficiency()
        self._longest, self._beats = [0.0] * len(SECTIONS), [0] * len(SECTIONS)
        self._spent = [0.0] * len(SECTIONS)

    def open(self, run: RunDir, topology: Topology) -> None:
        """Create the heartbeat file of this rank, if node memory can hold it."""
        self.rank, self.world_size = topology.rank, topology.world_size
        self._started = int(process_start(os.getpid()) or 0)
        with suppress(OSError):
            self.folder = place_of(run)
            make_owned(self.folder, private=True)
            path = self.folder.path / f"rank-{self.rank}"
            remove_in(self.folder, path.name)  # a killed process may have left one
            with open(path, "xb+", buffering=0) as file:
                # write zeros instead of truncating: if memory is full, using a truncated page kills the process (SIGBUS)
                file.write(bytes(SIZE))
                self._map = mmap.mmap(file.fileno(), SIZE)
            self.path = path
        self.enter("start", "importing")

    def close(self) -> None:
        """Enter the last section and remove the heartbeat file: the process is about to exit."""
        self.enter("end")
        if self.path and self.folder:
            with suppress(OSError):
                remove_in(self.folder, self.path.name)
            with suppress(FileNotFoundError):  # another rank may exit at the same time and remove it first
                if not any(name.startswith("rank-") for name in os.listdir(self.path.parent)):
                    remove(self.folder)
            self.path, self._map = None, bytearray(SIZE)

    def enter(self, section: str, place: str = "") -> None:
        """Start a section. All ranks enter the same sections in the same order."""
        self.turn += 1
        self.batch = 0
        self._spent[self.section] += time.monotonic() - self.began
        self.section = SECTIONS.index(section)
        # a silence that spans two sections counts for neither
        self.began = self.beat = self._batch_began = time.monotonic()
        self.at(place)

    @property
    def name(self) -> str:
        """The current section's name for messages: `step` is shown as `train`."""
        return "train" if SECTIONS[self.section] == "step" else SECTIONS[self.section]

    def spent(self) -> dict[str, float]:
        """Return the seconds spent in each section so far, by name.

        The time of `step` includes `data`, the wait for batches, and `others`, the wait for other ranks if it was measured.
        """
        seconds = dict(zip(SECTIONS, self._spent, strict=True))
        seconds[SECTIONS[self.section]] += time.monotonic() - self.began
        if (efficiency := self.efficiency.value) is not None:
            seconds["others"] = (1 - efficiency) * max(0.0, seconds["step"] - self.data)
        return {**seconds, "data": self.data}

    @contextmanager
    def within(self, section: str) -> Iterator[None]:
        """Enter a section nested in the current one, and return to the current one afterwards."""
        before, place = SECTIONS[self.section], PLACES[self.place]
        self.enter(section)
        yield
        self.enter(before, place)

    def at(self, place: str) -> None:
        """Move to a place within the section."""
        self.place = PLACES.index(place)
        self.pulse()

    def fetched(self) -> None:
        """Record that the batch arrived: the time since the last one was spent waiting for data."""
        now = time.monotonic()
        self.waited = now - self._batch_began
        self.data += self.waited
        self.place = FORWARD
        self._write(now)

    def waited_for_data(self, seconds: float, batches: int) -> None:
        """Record the data wait of `batches` batches, for loops that can't time `fetched`."""
        self.waited = seconds
        self.data += seconds * batches

    def computed(self, seconds: float | None = None) -> None:
        """Record a rank's own work in a batch: `seconds`, or the time since the last one."""
        now = time.monotonic()
        self.own += now - self._batch_began if seconds is None else seconds
        self._write(now)

    def trained_batch(self, step: int) -> None:
        """Record that one more training batch is done, and `step` optimizer steps in total."""
        self.step = step
        self.trained += 1
        self.batch += 1
        self.place = DATA
        self._batch_began = now = time.monotonic()
        self.first = self.first or now - self.began
        self._write(now)

    def evaluated_batch(self) -> None:
        """Record that a batch of validation or test is done."""
        self.batch += 1
        self.pulse()

    def pulse(self) -> None:
        """Record a sign of life that is no progress which ranks share, such as output of a program."""
        self._write(time.monotonic())

    def _write(self, now: float) -> None:
        section = self.section
        self._longest[section] = max(self._longest[section], now - self.beat)
        self._beats[section] += 1
        self.beat = now
        self._number = number = (self._number + 1) % 2**32
        _LAYOUT.pack_into(
            self._map, 0, number, VERSION, self.rank, self.world_size, self._pid, self._started, self.stacks, section,
            self.place, self.turn, self.batch, self.step, self._longest[section], self.own, self.data, self.trained,
            self._beats[section], self.began, now, number,
        )  # fmt: skip


def place_of(run: RunDir) -> OwnedFolder:
    """Return the folder with the heartbeats of a run's ranks on this node."""
    root = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")
    name = f"{run.path.parent.name}-{os.getuid()}-{run.id}.ranks"
    return OwnedFolder(root, (name,), f"heartbeats of run {run.id}")


def read(path: Path) -> dict[str, Any] | None:
    """Return the `FIELDS` of the heartbeat in a file. None if it can't be read."""
    for _ in range(5):
        try:
            first, version, *words, last = _LAYOUT.unpack_from(path.read_bytes())
            if first == last and first and version == VERSION:  # no write happened during the read
                words[5:7] = SECTIONS[words[5]], PLACES[words[6]]
                return dict(zip(FIELDS, words, strict=True))
        except (OSError, struct.error, IndexError):
            return None
    return None
