"""Progress for a person: lines in a file, a bar on a terminal, and rates between the points where the device has finished."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.testing.processes import run_python
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.distributed.topology import Topology
from train_anywhere.files import ROOT
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.plan import Plan
from train_anywhere.training.reporting import progress as module
from train_anywhere.training.reporting.progress import MIN_MEASURED_S, Progress, Throughput

PLAN = Plan(
    batch_per_rank=32,
    train_batches=10,
    accumulate=2,
    steps_per_epoch=5,
    max_epochs=3,
    total_steps=15,
    val_every=5,
    val_batches=1,
    test_batches=1,
)


def open_progress(
    kind: str = "plain", plan: Plan = PLAN, run: Path | None = None, beats: Any = None, newest: Any = None,
    profiled: tuple[Any, Any] = (None, None), **facts: Any,
) -> Progress:  # fmt: skip
    """Return the progress of a training that starts; it writes files if it has a folder."""
    trainer = SimpleNamespace(fast_dev_run=run is None, profiler=profiled[0])
    config: Any = SimpleNamespace(monitor=SimpleNamespace(progress=kind), trainer=trainer)
    process = RankProcess(RunDir(run or ROOT), Topology(), Stop(), heartbeat=beats or Heartbeat())
    devices = facts.pop("devices", 1)
    progress = Progress(config, process, plan, devices, facts, profiled[1], newest or (lambda: None))
    progress.start_training(0)
    return progress


class Clock:
    """A clock that is moved by hand, so that the test need not wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def epoch(progress: Progress, number: int, clock: Clock, seconds: float = 0.1) -> None:
    """Run ten batches. The last one has metrics."""
    for batch in range(PLAN.train_batches):
        clock.now += seconds
        progress.add_batches(number, batch, {"train/loss": 0.5, "lr": 0.01} if batch == 9 else None)
    clock.now += 100  # a long validation
    progress.end_epoch(number, {"train/loss": 0.5, "lr": 0.01, "val/loss": 0.25})


def test_a_plain_line_for_an_epoch(monkeypatch, capsys) -> None:
    """The rate is that of training: 10 batches of 32 on 2 ranks in 1 s, without validation."""
    clock = Clock(monkeypatch)
    with open_progress(devices=2) as progress:
        epoch(progress, 0, clock)
        epoch(progress, 1, clock)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert lines == [
        "epoch 1/3  step 5/15  train/loss 0.5  lr 0.01  val/loss 0.25  640 samples/s",
        "epoch 2/3  step 10/15  train/loss 0.5  lr 0.01  val/loss 0.25  640 samples/s",
    ]


def test_units_that_rows_hold_several_of(monkeypatch, capsys) -> None:
    """A row has 512 tokens: 10 batches of 32 rows in a second."""
    clock = Clock(monkeypatch)
    with open_progress(unit="tokens", units_per_row=512) as progress:
        clock.now += 10
        progress.add_batches(0, 0)
        progress.end_epoch(0, {})
        for batch in range(9):
            clock.now += 0.1
            progress.add_batches(1, batch)
        clock.now += 0.1
        progress.add_batches(1, 9, {"train/loss": 0.5})
        progress.end_epoch(1, {})
    first, _, last = capsys.readouterr().out.splitlines()
    assert first.startswith("epoch 1/3  step 0/15")
    assert last == "epoch 2/3  step 10/15  train/loss 0.5  163840 tokens/s"


def test_a_long_epoch_shows_life_every_ten_seconds(monkeypatch, capsys) -> None:
    clock = Clock(monkeypatch)
    with open_progress() as progress:
        epoch(progress, 0, clock, seconds=4.0)
        epoch(progress, 1, clock, seconds=4.0)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [row[3] for row in rows] == [f"{step}/15" for step in (1, 3, 4, 5, 6, 8, 9, 10)]
    known = [[word for word in row if "/" in word and word[0] in "tv"] for row in rows]
    # a row has no value of an earlier one
    assert known[3:7] == [["train/loss", "val/loss"], [], [], []]


def test_batches_may_be_told_several_at_once(monkeypatch, capsys) -> None:
    clock, said = Clock(monkeypatch), []
    for count in (1, 5):
        with open_progress() as progress:
            for batch in range(count - 1, 10, count):
                clock.now += 0.1 * count
                fresh = {"train/loss": 0.5} if batch == 9 else None
                progress.add_batches(0, batch, fresh, count)
            progress.end_epoch(0, {})
        said.append((capsys.readouterr().out, progress.throughput.rows))
    assert said[0] == said[1] and "320 samples/s" in said[0][0]


def test_max_steps_may_end_the_last_epoch_early(monkeypatch, capsys) -> None:
    clock = Clock(monkeypatch)
    with open_progress(plan=replace(PLAN, total_steps=13)) as progress:
        epoch(progress, 2, clock)
    assert "step 13/13" in capsys.readouterr().out


BAR = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
from engine.tests.training.test_progress import open_progress
with open_progress("auto") as progress:
    progress.note("resuming at step 0")
    for batch in range(10):
        progress.add_batches(0, batch, {{"train/loss": 0.5}})
    progress.end_epoch(0, {{"val/acc": 0.75}})
"""


@pytest.mark.parametrize("width", [80, 100, 120])
def test_auto_is_a_bar_that_fits_the_terminal(width: int) -> None:
    shown = screen(BAR, width)
    assert "resuming at step 0" in shown and "━" * 10 in shown
    assert "33% epoch 1/3" in shown and "loss 0.5" in shown
    epoch = next(line for line in lines(shown) if "step 5/15" in line or "val/acc" in line)
    assert epoch.startswith("epoch 1/3  val/acc 0.75     train/loss 0.5")
    assert max(map(len, lines(shown))) <= width


def test_a_narrow_terminal_shows_all_metrics_on_more_lines() -> None:
    code = BAR.replace('{"val/acc": 0.75}', '{f"val/metric{n}": 0.125 for n in range(12)}')
    shown = lines(screen(code, 80))
    assert max(map(len, shown)) <= 80 and "…" not in "".join(shown)
    rows = shown[next(n for n, line in enumerate(shown) if "val/metric0" in line) :]
    assert all(f"val/metric{n} 0.125" in "\n".join(rows) for n in range(12))
    assert rows[1].startswith(" " * len("epoch 1/3  ") + "val/metric3")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colors_where_they_are_not_wanted(environment: dict[str, str]) -> None:
    assert "\x1b[3" not in screen(BAR, 100, **environment)


def screen(code: str, width: int, **environment: str) -> str:
    """Run a program on a terminal and return what it printed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    environ = {**environ, "TERM": "xterm-256color", **environment}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""
        while chunk := read(ours):
            shown += chunk
    assert process.returncode == 0, shown.decode()
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()) if not environment else shown.decode()


def lines(shown: str) -> list[str]:
    """Return the lines of a screen, without control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


def read(terminal: int) -> bytes:
    """Return the next output on the terminal. Linux reports its end as an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_auto_is_plain_in_a_file() -> None:
    out = run_python("-c", BAR, check=True).stdout
    note, first, last = out.splitlines()
    assert note == "resuming at step 0" and first.startswith("epoch 1/3  step 0/15  train/loss 0.5")
    assert last.startswith("epoch 1/3  step 5/15  train/loss 0.5  val/acc 0.75")


def test_what_is_told_to_who_asks_from_outside(monkeypatch, capsys, tmp_path) -> None:
    """10 batches in 1 s that each waited 0.04 s for data, then 100 s of validation."""
    clock = Clock(monkeypatch)
    heartbeat = Heartbeat()
    heartbeat.enter("start")
    saved: list[SavedCheckpoint] = []
    newest = lambda: saved[-1] if saved else None  # noqa: E731
    with open_progress("none", run=tmp_path, beats=heartbeat, newest=newest, unit="images") as progress:
        assert progress.state()["section"] == "start"
        assert progress.state()["step"] is None
        clock.now += 50  # a slow start is not training
        heartbeat.enter("step", "data")
        progress.start_training(0)
        for batch in range(10):
            clock.now += 0.04
            heartbeat.fetched()
            clock.now += 0.06
            heartbeat.trained_batch(batch // 2)
            progress.add_batches(0, batch, {"train/loss": float("inf")} if batch == 9 else None)
        told = progress.state()
        assert (told["epoch"], told["epochs"], told["step"], told["steps"]) == (1, 3, 5, 15)
        assert (told["rate"], told["unit"], told["data_wait"]) == (320.0, "images", 0.4)
        assert told["seconds_left"] == 1.8  # 5 steps in 0.9 s since the first batch
        with heartbeat.within("validation"):
            assert progress.state()["section"] == "validation"
            clock.now += 100
        progress.end_epoch(0, {"val/loss": 0.25})
        told = progress.state()
        assert told["section"] == "train"
        assert told["metrics"] == {"train/loss": float("inf"), "val/loss": 0.25}
        assert told["rate"] == 320.0  # the last one known
        assert told["seconds_left"] == 201.8  # what validations take is part of the pace
        assert told["checkpoint"] is None
        (tmp_path / "00000005").mkdir()
        saved.append(SavedCheckpoint(5, 1, 0, {}, None, "keras", tmp_path / "00000005"))
        assert progress.state()["checkpoint"]["step"] == 5
        heartbeat.enter("end")
    left = json.loads((tmp_path / "monitor" / "live.json").read_text())
    assert left["section"] == "end"
    assert left["step"] == 5
    assert capsys.readouterr().out == ""


def test_a_rank_that_nobody_asks_counts_and_says_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with open_progress("none") as progress:
        progress.add_batches(0, 3)
        progress.note("resuming")
        assert progress.live is None
        assert progress.state()["step"] is None
    assert [*tmp_path.iterdir()] == [] and capsys.readouterr().out == ""


def test_rates_of_intervals() -> None:
    meter = Throughput(rows=8, world_size=2, unit="rows", heartbeat=Heartbeat())
    assert meter.summary() is None
    for batch in range(12):
        time.sleep(0.01)
        meter.add_batches(batch % 4 == 3, 1, batch)
    assert len(meter.rates) == 2  # the first interval is left out
    assert all(0 < rate <= 8 / 0.01 for rate in meter.rates)
    assert meter.summary() is None  # too short for a rate
    meter.seconds = MIN_MEASURED_S
    text = meter.summary()
    assert text is not None
    found = re.fullmatch(r"([\d.]+) rows/s on average \(from [\d.]+ to [\d.]+\), ([\d.]+) per device", text)
    assert found and abs(float(found[1]) - 2 * float(found[2])) < 0.3
    meter.world_size = 1
    assert re.fullmatch(r"[\d.]+ rows/s on average \(from [\d.]+ to [\d.]+\)", meter.summary() or "")


def test_a_pause_does_not_count() -> None:
    meter = Throughput(rows=8, world_size=1, unit="rows", heartbeat=Heartbeat())
    began = time.monotonic()
    for _ in range(3):
        meter.add_batches(True, 1, 0)
        meter.add_batches(True, 1, 0)
        meter.restart()
        time.sleep(0.05)
    assert len(meter.rates) == 3
    assert meter.seconds <= time.monotonic() - began - 3 * 0.05
