"""The metrics of a program, from JSON, event files or printed lines."""

import json
import math
import re
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from train_anywhere.config.checks.monitors import infer_mode
from train_anywhere.config.schema import Config
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank, Step
from train_anywhere.files.atomic import open_file
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.monitor.live import Live
from train_anywhere.runs.folder import ATTEMPTS
from train_anywhere.runs.metrics_csv import CsvLog

EVERY_S = 1.0
"""Seconds between two reads."""

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Matches colors and the like of a terminal."""


LOSS = re.compile(
    rb"(?:((?:step|iter|batch|epoch)\w*[ :=#]+)\d+\b[^\r\n]*?)?\b(loss[ :=]+)[-+]?\d", re.IGNORECASE
)
"""Matches a printed loss, perhaps after the number of its step."""


class ProgramMetrics:
    """Reader of a program's metrics, on rank 0: metrics.csv, monitor/live.json, run.json and the observers of the features get each row.

    Attributes:
        step: the newest step; None before the first row.
        pattern: a regular expression for the losses that the program prints; "" if it prints none.
    """

    def __init__(self, config: Config, process: RankProcess) -> None:
        run = process.run
        assert process.recorder
        self._process, self._recorder = process, process.recorder
        self.step: int | None = None
        self.values: dict[str, float] = {}
        self.epoch = 0
        self._pattern = re.compile(config.program.metrics) if config.program.metrics else None
        self.pattern = ""
        self._printed: deque[str] = deque()
        self._rest: dict[int, bytes] = {}
        self._file, self._at = run.path / "metrics.jsonl", 0
        with suppress(OSError):  # of an earlier attempt
            self._at = self._file.stat().st_size
        self._events = {path: path.stat().st_size for path in run.tensorboard.rglob("events.out.tfevents.*")}
        self._checkpoint = config.checkpoint
        self._first: tuple[int, float] | None = None
        self._csv: CsvLog | None = None
        self._due, self._noted = 0.0, False
        rank = Rank(run, 0, process.topology.world_size)
        self._observers = Observers(Features.of(config).observers(rank))
        self._live = Live(run.path, self._state, lambda: process.heartbeat.beat)

    def feed(self, stream: int, data: bytes) -> None:
        """Take printed bytes. Another thread calls it for each stream."""
        # a line with its step is better, whichever stream is read first
        if "<step>" not in self.pattern and (found := LOSS.search(data)):
            step, loss = (word and word.decode() for word in found.groups())
            if step or not self.pattern:
                self.pattern = (rf"{step}(?P<step>\d+).*" if step else "") + rf"{loss}(?P<loss>\S+)"
        if self._pattern:
            *lines, self._rest[stream] = re.split(rb"[\r\n]", self._rest.get(stream, b"") + data)
            self._printed.extend(ESCAPES.sub("", line.decode(errors="replace")) for line in lines)

    def read(self, last: bool = False) -> None:
        """Read new rows, at most once a second before the `last` time.

        Raises NotFiniteError: a loss is nan or inf, and `trainer.detect_nan` is stop.
        """
        if not last and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY_S
        if last:
            for stream in [*self._rest]:
                self.feed(stream, b"\n")
        for row in (*self._read_lines(last), *self._read_printed(), *self._read_events()):
            self._add(row)

    def close(self) -> None:
        """Write the last state of live.json."""
        if self._csv:
            self._live.close()

    def _add(self, row: Mapping[str, Any]) -> None:
        step, epoch = row.get("step"), row.get("epoch")
        number = int(step) if isinstance(step, int | float) and math.isfinite(step) else (self.step or 0) + 1
        if isinstance(epoch, int | float) and math.isfinite(epoch):
            self.epoch = int(epoch)
        found = {name: value for name, value in row.items() if name not in ("step", "epoch")}
        metrics = {str(k): float(value) for k, value in found.items() if isinstance(value, int | float)}
        if not metrics or number < 0:
            return
        if self._csv is None:
            self._start(number)
        assert self._csv
        self.step = number
        new = metrics.keys() - self.values.keys()
        self.values |= metrics
        if new:
            monitor, mode = self._checkpoint.monitor, self._checkpoint.mode
            if not monitor:  # the metric whose best value is shown is a loss, if there is one
                known = [name for name in sorted(self.values) if infer_mode(name)]
                known.sort(key=lambda name: ("val" not in name and "test" not in name, "loss" not in name))
                monitor, mode = (known[0], infer_mode(known[0])) if known else (None, None)
            self._recorder.record_facts({"monitor": monitor, "mode": mode})
        self._csv.write(number, self.epoch, metrics)
        self._process.heartbeat.pulse()
        self._observers.after_step(Step(number, self.epoch, 0, metrics))

    def _start(self, step: int) -> None:
        """Open the log at the first row, without rows that are repeated now."""
        run = self._process.run
        again = len(run.read_info().get(ATTEMPTS) or []) > 1
        self._first = (step, time.monotonic())
        self._recorder.record_first_step(max(0, step - 1))
        self._csv = CsvLog(run.metrics_csv)
        if again:
            self._csv.resume(step - 1)
        self._recorder.steps_done = lambda: self.step or 0
        self._live.start()

    def _read_lines(self, last: bool) -> Iterator[dict[str, Any]]:
        data = _read_new(self._file, self._at)
        whole = data if last else data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line) if line.strip() else {}
                if not isinstance(row, dict):
                    raise ValueError
                yield row
            except ValueError:
                if not self._noted:
                    self._noted = True
                    skipped = "lines of $TRAIN_METRICS that are not JSON objects are skipped"
                    print(f"note: {skipped}, such as {line[:60]!r}.", flush=True)

    def _read_printed(self) -> Iterator[dict[str, Any]]:
        assert self._pattern or not self._printed
        while self._printed and self._pattern:
            row: dict[str, float] = {}
            if found := self._pattern.search(self._printed.popleft()):
                for name, text in found.groupdict().items():
                    with suppress(ValueError):
                        row[name.replace("__", "/")] = float((text or "").replace(",", ""))
                yield row

    def _read_events(self) -> Iterator[dict[str, Any]]:
        """Yield a row for consecutive scalars of a step. A subfolder starts their names."""
        folder = self._process.run.tensorboard
        for path in sorted(folder.rglob("events.out.tfevents.*")):
            prefix = f"{path.parent.relative_to(folder)}/".replace("validation/", "val/").removeprefix("./")
            for step, found in groupby(self._read_scalars(path), key=itemgetter(0)):
                yield {"step": step, **{f"{prefix}{tag}": value for _, tag, value in found}}

    def _read_scalars(self, path: Path) -> Iterator[tuple[int, str, float]]:
        """Yield step, tag and value of the complete new records: length, checksum, event, checksum."""
        data = _read_new(path, self._events.get(path, 0))
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.util.tensor_util import make_ndarray
        except ImportError:
            return
        at = 0
        while len(data) - at >= 16:
            (length,) = struct.unpack_from("<Q", data, at)
            if len(data) - at < 16 + length:
                break
            event = Event()
            with suppress(Exception):  # a damaged record
                event.ParseFromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                number = value.simple_value if value.HasField("simple_value") else None
                with suppress(Exception):  # TensorFlow 2 writes tensors; some have several numbers, or text
                    number = float(make_ndarray(value.tensor).item()) if number is None else number
                if number is not None:
                    yield event.step, value.tag, number
        self._events[path] = self._events.get(path, 0) + at

    def _state(self) -> dict[str, Any]:
        """Return the content of live.json. Another thread calls it."""
        return {"section": self._process.heartbeat.name, **self.facts(), "epoch": self.epoch or None}

    def facts(self) -> dict[str, Any]:
        """Return the newest step and metrics, as run.json has them."""
        rate = None  # steps per second since the first row of this attempt
        if self._first and self.step is not None and self.step > self._first[0]:
            rate = round((self.step - self._first[0]) / max(1e-9, time.monotonic() - self._first[1]), 3)
        known = {"step": self.step, "epoch": self.epoch, "metrics": {**self.values}}
        return {**known, "rate": rate, "unit": "steps"}


def _read_new(path: Path, at: int) -> bytes:
    """Return the bytes of a file from a position on; none if it can't be read."""
    with suppress(OSError), open_file(path, "rb") as file:
        file.seek(at)
        return file.read()
    return b""
