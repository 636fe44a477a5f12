"""The progress of a run: its training speed, and the values that `monitor/live.py` writes."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.files.removal import print_once
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import Live, Requests
from train_anywhere.training.plan import Plan
from train_anywhere.training.profile import Recording, StepProfile
from train_anywhere.training.reporting.display import Display

MIN_MEASURED_S = 5.0
"""Seconds of measured intervals that a mean rate needs."""


class Throughput:
    """The speed of training: now, since the last validation, and on average over the intervals between two metric reports.

    At a metric report the device has finished. The first interval is left out: it includes compilation, memory allocation and the start of
    the input pipeline.

    Args:
        rows: rows, or units, of one batch over all ranks; 0 if not known yet.
        unit: plural name of what is counted, such as "samples".
    """

    def __init__(self, rows: float, world_size: int, unit: str, heartbeat: Heartbeat) -> None:
        self.rows, self.world_size, self.unit, self.heartbeat = rows, world_size, unit, heartbeat
        self.rates: list[float] = []
        self.seconds = 0.0
        self._since: float | None = None
        self._first: tuple[float, int] | None = None
        self._rate: float | None = None
        self._waits: float | None = None
        self.restart()

    def restart(self) -> None:
        """Start anew, so that the speed excludes a validation or the start of the run."""
        self._batches, self._since = 0, None
        self._shown, self._waited_before = 0, self.heartbeat.data
        self._began = self._last = time.monotonic()

    def add_batches(self, synchronized: bool, count: int, steps: int) -> None:
        """Count finished batches, after which `steps` are done. With `synchronized`, an interval ends."""
        self._batches += count
        self._shown += count
        self._last = now = time.monotonic()
        self._first = self._first or (now, steps)
        if not synchronized:
            return
        if self._since is not None and now > self._since:
            self.rates.append(self._batches * self.rows / (now - self._since))
            self.seconds += now - self._since
        self._batches, self._since = 0, now

    def mean(self) -> float | None:
        """Return the mean rate in rows per second over all ranks, or None."""
        return statistics.mean(self.rates) if self.rates else None

    def summary(self) -> str | None:
        """Return mean, slowest and fastest rate as a phrase. None if too little was measured."""
        mean = self.mean()
        if not mean or len(self.rates) < 2 or self.seconds < MIN_MEASURED_S:
            return None
        each = f", {mean / self.world_size:.1f} per device" if self.world_size > 1 else ""
        return (
            f"{mean:.1f} {self.unit}/s on average (from {min(self.rates):.1f} to {max(self.rates):.1f}){each}"
        )

    def rate(self) -> float | None:
        """Return the rows, or units, per second since the last restart, or None."""
        seconds = self._last - self._began
        return self._shown * self.rows / seconds if seconds > 0 and self.rows else None

    def last_rate(self) -> float | None:
        """Return `rate`, or the last known one."""
        if rate := self.rate():
            self._rate = round(rate, 3)
        return self._rate

    def seconds_left(self, step: int, total: int) -> float | None:
        """Return the estimated seconds from a step to the end, or None if no step was timed."""
        if self._first is None or step <= self._first[1]:
            return None
        each = (max(self._last, self.heartbeat.beat) - self._first[0]) / (step - self._first[1])
        return round(each * (total - step), 1)

    def data_wait(self) -> float | None:
        """Return the share of time spent waiting for data, or the last one after a restart."""
        seconds = self._last - self._began
        if seconds > 0:
            self._waits = round(min(1.0, max(0.0, self.heartbeat.data - self._waited_before) / seconds), 4)
        return self._waits


def open_progress(
    config: Config,
    process: RankProcess,
    plan: Plan,
    devices: int,
    facts: Mapping[str, Any],
    recording: Callable[[Path, str], Recording],
    newest: Callable[[], SavedCheckpoint | None],
    steps_done: Callable[[], int] | None = None,
) -> "Progress":
    """Return the progress of a run over so many `devices`, which rank 0 shows and writes. `recording` starts a profiler."""
    rank, fast, recorder = process.topology.rank, config.trainer.fast_dev_run, process.recorder
    kind = "none" if rank else config.monitor.progress
    display = Display(kind, plan.total_steps * plan.accumulate)
    steps = config.trainer.profiler
    return Progress(
        display,
        plan,
        devices,
        facts.get("unit", "samples"),
        units_per_row=facts.get("units_per_row", 1),
        live=None if rank or fast else process.run.path,
        heartbeat=process.heartbeat,
        newest=newest,
        steps_done=steps_done,
        record=recorder.record_note if recorder else None,
        profile=None if fast else StepProfile(process.run, rank, steps, recording, display.note),
    )


class Progress:
    """The progress of one run, a context manager.

    Args:
        live: run folder in which monitor/live.json is updated, also without a display; None to write none.
        newest: returns the newest checkpoint in the run folder.
        steps_done: returns the number of optimizer steps done, from any thread; None: all batches were trained.
        profile: the profiles of this rank; None for a run that writes nothing.
        record: adds a line to the report of the run; None on other ranks than 0.

    Attributes:
        requests: requests of `jobs.py` to this run, read by the thread that updates live.json.
    """

    def __init__(
        self,
        display: Display,
        plan: Plan,
        world_size: int = 1,
        unit: str = "samples",
        live: Path | None = None,
        heartbeat: Heartbeat | None = None,
        newest: Callable[[], SavedCheckpoint | None] = lambda: None,
        steps_done: Callable[[], int] | None = None,
        profile: StepProfile | None = None,
        units_per_row: float = 1,
        record: Callable[[str], None] | None = None,
    ) -> None:
        self.record = record
        self.units_per_row = units_per_row
        self.display, self.plan, self.profile = display, plan, profile
        self.heartbeat = heartbeat or Heartbeat()
        rows = plan.batch_per_rank * world_size * units_per_row
        self.throughput = Throughput(rows, world_size, unit, self.heartbeat)
        self.requests = Requests(live)
        self._newest, self._steps_done = newest, steps_done
        self._at: tuple[int, int] | None = None
        moved, poll = lambda: self.heartbeat.beat, self.requests.poll
        self.live = Live(live, self.state, moved, poll=poll) if live else None
        self._idle = display.kind == "none" and not live

    def __enter__(self) -> Self:
        if self.display.bar:
            self.display.bar.start()
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.profile:
            self.profile.close()
        if self.display.bar:
            self.display.bar.stop()
        if self.live:
            self.live.close()
        if kind is None and (rates := self.throughput.summary()):
            share = self.heartbeat.efficiency.value  # None for a single rank
            efficiency = "" if share is None else f", efficiency {share:.0%}"
            self.display.note(f"training speed: {rates}{efficiency}")

    def note(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        self.display.note(text)

    def report(self, line: str) -> None:
        """Print a line also without a display, and add it to the report of the run. Only rank 0 does."""
        if self.record:
            (print_once if self.display.kind == "none" else self.note)(line)
            self.record(line)

    def take_profile(self) -> int:
        """Return the number of a new request to profile, once, or 0."""
        if number := self.requests.profile:  # a thread may set it meanwhile
            self.requests.profile = 0
        return number

    def request_profile(self, number: int) -> None:
        """Profile the next steps of this rank if the request with this number names it."""
        if number and self.profile:
            self.profile.request(number)

    def start_training(self, step: int) -> None:
        """Start the clock before the first batch, after `step` steps of earlier attempts."""
        # Lightning opens the loaders in `fit`
        rows = self.plan.batch_per_rank * self.throughput.world_size
        self.throughput.rows = rows * self.units_per_row
        self.display.start_training(self.plan.total_steps * self.plan.accumulate)
        self.throughput.restart()
        if self.profile:
            self.profile.after_step(step)

    def add_batches(
        self,
        epoch: int,
        batch: int,
        metrics: Mapping[str, float] | None = None,
        count: int = 1,
        loss: Callable[[], float] | None = None,
    ) -> None:
        """Count finished training batches, and update the display if it is due.

        Args:
            epoch: number of the epoch, from 0.
            batch: number of the last finished batch in the epoch, from 0.
            metrics: the metrics, if they are reported now.
            count: batches finished since the last call.
            loss: returns the loss of this rank; called only if no metrics came for seconds, since it waits for the device.
        """
        if self._idle:
            return
        self._at = (epoch, batch)
        self.throughput.add_batches(bool(metrics), count, self._steps())
        if self.display.update(metrics, loss, batch >= self.plan.train_batches - 1):
            self.display.show(self._batches_done(), self._parts())

    def end_epoch(self, epoch: int, metrics: Mapping[str, float], batch: int | None = None) -> None:
        """Show the end of an epoch, or a validation within it, with its metrics.

        `epoch` and `batch`, the last batch done, count from 0; None: the last batch of the epoch.
        """
        if self._idle:
            return
        self.display.measured(metrics)
        self._at = (epoch, self.plan.train_batches - 1 if batch is None else batch)
        self.display.show(self._batches_done(), parts := self._parts())
        self.display.end_epoch(parts)
        self.throughput.restart()

    def state(self) -> dict[str, Any]:
        """Return the content of live.json. Another thread calls it."""
        step, newest, plan = self._steps(), self._newest(), self.plan
        saved: float | None = None
        if newest:
            with suppress(OSError):  # it may just have been removed
                saved = round(newest.path.stat().st_mtime, 1)
        return {
            "section": self.heartbeat.name,
            "epoch": (self._at or (0, 0))[0] + 1,
            "epochs": plan.max_epochs if plan.max_epochs < MAX_COUNT else None,
            "step": step if self._at else None,
            "steps": plan.total_steps if plan.steps_known else None,
            "rate": self.throughput.last_rate(),
            "unit": self.throughput.unit,
            "seconds_left": self.throughput.seconds_left(step, plan.total_steps)
            if plan.steps_known
            else None,
            "metrics": {n: float(v) for n, v in (self.display.metrics | self.display.recent).items()},
            "checkpoint": {"step": newest.step, "time": saved} if newest else None,
            "data_wait": self.throughput.data_wait(),
            "efficiency": self.heartbeat.efficiency.value,
        }

    def _parts(self) -> list[str]:
        """Return a line in parts, such as `epoch 3/10` and `step 69/230`."""
        of = f"/{self.plan.total_steps}" if self.plan.steps_known else ""
        epochs = f"/{self.plan.max_epochs}" if self.plan.max_epochs < MAX_COUNT else ""
        parts = [f"epoch {(self._at or (0, 0))[0] + 1}{epochs}", f"step {self._steps()}{of}"]
        parts += [f"{name} {value:.4g}" for name, value in (self.display.fresh | self.display.recent).items()]
        if (rate := self.throughput.rate()) is not None:
            parts.append(f"{rate:.0f} {self.throughput.unit}/s")
        return parts

    def _batches_done(self) -> int:
        epoch, batch = self._at or (0, -1)
        return epoch * self.plan.train_batches + batch + 1

    def _steps(self) -> int:
        """Return the number of optimizer steps done."""
        if self._steps_done:
            return self._steps_done()
        return min(self.plan.total_steps, self._batches_done() // self.plan.accumulate)
