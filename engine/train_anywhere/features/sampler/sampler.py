"""The samples of one node: a row in RUN/monitor/<host>.csv, the newest in <host>.json, and curves in TensorBoard."""

import csv
import errno
import io
import itertools
import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.features.sampler import gpus
from train_anywhere.features.sampler.curves import Curves
from train_anywhere.features.sampler.machine import Machine
from train_anywhere.files.atomic import set_aside, write_atomic
from train_anywhere.files.ordinary import make_folder, open_file
from train_anywhere.files.plain_json import dumps
from train_anywhere.runs.folder import RunDir

WRITERS_PER_S = 10
"""Files that all nodes together write per second, at most: 1,000 nodes take a sample every 100 s."""

WITH_CURVES = 32
"""Nodes up to which each has curves in TensorBoard; of a larger job there are the files."""

OF_GPU = ("use_percent", "memory_used_gib", "power_w", "temperature_c")


class Sampler:
    """Takes a sample of this node every few seconds.

    Args:
        name: of this node.
    """

    def __init__(self, run: RunDir, config: Config, name: str) -> None:
        nodes, seconds = config.trainer.most_nodes, config.monitor.sample_seconds or 0.0
        self.every_seconds = max(seconds, nodes / WRITERS_PER_S)
        self.table = Table(run.monitor / f"{name}.csv")
        self.newest = run.monitor / f"{name}.json"
        self.machine, self.ask_gpus = Machine(str(run.path)), gpus.reader()
        self.facts = {"host": name, "every_seconds": self.every_seconds, **self.machine.facts()}
        curves = config.monitor.tensorboard and nodes <= WITH_CURVES
        self.curves = Curves(run.tensorboard / name, first_time(self.table.path)) if curves else None

    def look(self, now: float) -> None:
        """Take a sample and write it. Raises OSError where the disk does not take it."""
        found = self.ask_gpus()
        sample = {"time": now, **self.machine.sample(), **columns(found)}
        sample = {name: value if value is None else round(value, 3) for name, value in sample.items()}
        known = [{"index": g.index, "name": g.name, "memory_gib": g.memory_gib} for g in found]
        make_folder(self.newest.parent)
        self.table.add(sample)
        write_atomic(self.newest, dumps({**self.facts, "gpus": known, "sample": sample}))
        if self.curves:
            self.curves.add(sample)

    def close(self) -> None:
        """Each sample is on the disk when it has been taken."""


def first_time(table: Path) -> float:
    """When the first sample of a node was taken, in unix seconds; now, where there is none."""
    with suppress(OSError, ValueError, IndexError), open_file(table, "rb") as file:
        return float([*itertools.islice(file, 2)][1].split(b",")[0])
    return time.time()


def columns(found: list[gpus.Gpu]) -> dict[str, float | None]:
    """What each GPU does: gpu0_use_percent, gpu0_memory_used_gib, ..."""
    return {f"gpu{g.index}_{name}": asdict(g)[name] for g in found for name in OF_GPU}


class Table:
    """A CSV file that grows by whole rows, also over several attempts of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: list[str] = []

    def add(self, row: dict[str, Any]) -> None:
        """Append a row. A file with other columns, from a node of other GPUs, is kept as NAME.csv.before-1.

        Raises:
            OSError: the disk refuses; the file is as it was.
        """
        if not self.header:
            self.header = [*row]
            self._continue()
        with open_file(self.path, "ab") as file:
            size = file.tell()
            lines = "" if size else _line(self.header)
            whole = (lines + _line([row.get(name) for name in self.header])).encode()
            if file.write(whole) != len(whole):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _continue(self) -> None:
        """Look at what an earlier attempt has left."""
        with suppress(FileNotFoundError), open_file(self.path, "rb+") as file:
            before = file.readall()
            if before and not before.startswith(_line(self.header).encode()):
                set_aside(self.path, "before")
            elif before and not before.endswith(b"\n"):  # killed in the middle of a row
                file.truncate(before.rfind(b"\n") + 1)


def _line(values: list[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return text.getvalue()
