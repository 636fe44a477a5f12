"""Sample one node into RUN/monitor/<host>.csv and <host>.json."""

import csv
import errno
import io
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_anywhere.config.schema import Monitor
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.files.atomic import dumps, make_folder, open_file, set_aside, write_atomic
from train_anywhere.monitor.run_facts import SUMMED, AttemptSums, sum_up
from train_anywhere.runs.facts import rows
from train_anywhere.runs.folder import RunDir

if TYPE_CHECKING:
    from train_anywhere.features.sampler.machine import Gpu

WRITERS_PER_S = 10
"""Largest number of files per second that all nodes together write: of 1,000 nodes, each takes a sample every 100 s."""

GPU_COLUMNS = ("use_percent", "memory_used_gib", "power_w", "temperature_c")


class SampleNodes(Feature):
    """Sample the hardware use of each node while the run trains."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether `monitor.sample_seconds` is set."""
        return self.config.monitor.sample_seconds is not None

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the sampler."""
        return [lambda: Sampler(run, self.config.monitor, self.config.trainer.max_nodes, host)]


class Sampler(NodeService):
    """Service that takes a sample of this node every few seconds."""

    def __init__(self, run: RunDir, config: Monitor, nodes: int, name: str) -> None:
        from train_anywhere.features.sampler.machine import Machine, reader  # a container may have no psutil

        self.every_seconds = max(config.sample_seconds or 0.0, nodes / WRITERS_PER_S)
        self.table = Table(run.monitor / f"{name}.csv")
        self.newest = run.monitor / f"{name}.json"
        self.machine, self.read_gpus = Machine(str(run.path)), reader()
        self.facts = {"host": name, "every_seconds": self.every_seconds, **self.machine.facts()}
        self.sums: dict[str, AttemptSums] | None = None

    def poll(self, now: float) -> None:
        """Take a sample and write it. Raises OSError if the write fails."""
        found = self.read_gpus()
        sample = {"time": now, **self.machine.sample(), **columns(found)}
        sample = {name: value if value is None else round(value, 3) for name, value in sample.items()}
        known = [{"index": g.index, "name": g.name, "memory_gib": g.memory_gib} for g in found]
        make_folder(self.newest.parent)
        self.table.add(sample)
        if self.sums is None:  # an earlier attempt may have written rows before this one
            self.sums = sum_up(rows(self.table.path))
        else:
            at = sample["time"] or 0.0
            for name in filter(SUMMED.fullmatch, sample):
                if (value := sample[name]) is not None and math.isfinite(value):
                    self.sums.setdefault(name, AttemptSums(at, at, value)).add(at, value)
        sums = {name: astuple(values) for name, values in self.sums.items()}
        write_atomic(self.newest, dumps({**self.facts, "gpus": known, "sample": sample, "sums": sums}))


def columns(found: "list[Gpu]") -> dict[str, float | None]:
    """Return the values of all GPUs by column: gpu0_use_percent, gpu0_memory_used_gib, ..."""
    return {f"gpu{g.index}_{name}": asdict(g)[name] for g in found for name in GPU_COLUMNS}


class Table:
    """CSV file that grows by whole rows, over all attempts of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: list[str] = []

    def add(self, row: dict[str, Any]) -> None:
        """Append a row. A file with other columns is renamed first. Raises OSError."""
        if not self.header:
            self.header = [*row]
            with suppress(FileNotFoundError), open_file(self.path, "rb+") as file:  # of an earlier attempt
                before = file.readall()
                if before and not before.startswith(_line(self.header).encode()):
                    set_aside(self.path, "before")
                elif before and not before.endswith(b"\n"):  # it was killed while it wrote a row
                    file.truncate(before.rfind(b"\n") + 1)
        with open_file(self.path, "ab") as file:
            size = file.tell()
            lines = "" if size else _line(self.header)
            whole = (lines + _line([row.get(name) for name in self.header])).encode()
            if file.write(whole) != len(whole):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def _line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return text.getvalue()
