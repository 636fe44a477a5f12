"""The display of a run: a bar on a terminal or plain lines in a log, the training speed, and the values that `monitor/live.py` writes."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.files.terminal.printable import fit_parts
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import Live, Requests
from train_anywhere.training.plan import Plan
from train_anywhere.training.profile import StepProfile
from train_anywhere.training.reporting.bar import Bar

MIN_MEASURED_S = 5.0
"""Seconds of measured intervals that a mean rate needs."""


class Throughput:
    """Rates of the intervals between two metric reports; a report reads values from the device, so the device has finished by then.

    The first interval is left out: it includes compilation, memory allocation and the start of the input pipeline.

    Args:
        rows: rows, or units, of one batch over all ranks; updated before each report if it varies.
        world_size: devices that share the global batch.
        unit: plural name of what is counted, such as "samples".
        min_seconds: seconds that a device at its peak needs for one unit; None if unknown.
    """

    def __init__(self, rows: float, world_size: int, unit: str, min_seconds: float | None = None) -> None:
        self.rows, self.world_size, self.unit = rows, world_size, unit
        self.min_seconds = min_seconds
        self.rates: list[float] = []
        self.seconds = 0.0
        self._batches = 0
        self._since: float | None = None

    def add_batches(self, synchronized: bool, count: int = 1) -> None:
        """Count trained batches; with `synchronized`, the device has finished them, and an interval ends."""
        self._batches += count
        if not synchronized:
            return
        now = time.perf_counter()
        if self._since is not None and now > self._since:
            self.rates.append(self._batches * self.rows / (now - self._since))
            self.seconds += now - self._since
        self._batches, self._since = 0, now

    def pause(self) -> None:
        """Discard the open interval, because a validation or a checkpoint interrupts it."""
        self._batches, self._since = 0, None

    def mean(self) -> float | None:
        """Return the mean rate in rows per second over all ranks; None if nothing was measured."""
        return statistics.mean(self.rates) if self.rates else None

    def summary(self) -> str | None:
        """Return the mean rate and the slowest and fastest interval as a phrase; None if too little was measured."""
        if len(self.rates) < 2 or self.seconds < MIN_MEASURED_S:
            return None
        mean, low, high = statistics.mean(self.rates), min(self.rates), max(self.rates)
        each = f", {mean / self.world_size:.1f} per device" if self.world_size > 1 else ""
        return (
            f"{mean:.1f} {self.unit}/s on average (from {low:.1f} to {high:.1f}){each}{self.peak_share(mean)}"
        )

    def peak_share(self, rate: float) -> str:
        """Return the share of their peak that the devices reach at a total `rate` as a phrase; empty if the peak is unknown."""
        if self.min_seconds is None:
            return ""
        return f", {100 * rate / self.world_size * self.min_seconds:.1f}% of the chip's peak"


LINE_EVERY_S = 10.0
"""Seconds between plain lines within an epoch."""
SLOW_S = 2.0
"""Seconds after which a run without metrics shows the loss of this rank."""

DRAW_EVERY_S = 0.25
"""Seconds between redraws of the bar."""


class Progress:
    """The display of one run, a context manager. Rank 0 shows it; other ranks use the kind `none`.

    Args:
        kind: auto: a bar if the output is a terminal, else plain lines.
        plan: the size of the run.
        world_size: devices that share the global batch, for the speed.
        unit: plural name of what is counted in a batch, such as "samples".
        counts_units: whether a row holds several units; each report of metrics then gives their number.
        min_seconds: seconds that a device at its peak needs for one unit; None if unknown.
        live: run folder in which monitor/live.json is updated, whatever `kind` is; None to write none.
        heartbeat: state of this rank, for its waits for data and its efficiency.

    Attributes:
        newest: returns the newest checkpoint in the run folder.
        requests: requests of `jobs.py` to this run, read by the thread that updates live.json.
        steps_done: returns the number of optimizer steps done, from any thread; None: all batches were trained.
        profile: the profiles of this rank; None for a run that writes nothing.
    """

    def __init__(
        self,
        kind: Literal["auto", "bar", "plain", "none"],
        plan: Plan,
        world_size: int = 1,
        unit: str = "samples",
        counts_units: bool = False,
        min_seconds: float | None = None,
        live: Path | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        if kind == "auto":
            kind = "bar" if sys.stdout.isatty() else "plain"
        self.kind, self.plan = kind, plan
        self.heartbeat = heartbeat or Heartbeat()
        self.unit = unit
        # per batch, over all ranks; 0: not known yet
        self.devices, self.counts_units = world_size, counts_units
        self.rows = 0.0 if counts_units else plan.batch_per_rank * world_size
        self._unreported = 0
        self.throughput = Throughput(self.rows, world_size, unit, min_seconds)
        self.metrics: dict[str, float] = {}
        self._recent: dict[str, float] = {}
        self._measured = time.monotonic()
        self.bar = Bar(plan.total_steps * plan.accumulate) if kind == "bar" else None
        self.newest: Callable[[], SavedCheckpoint | None] = lambda: None
        self.steps_done: Callable[[], int] | None = None
        self._at: tuple[int, int] | None = None
        self._first: tuple[float, int] | None = None
        self._rate: float | None = None
        self._waits: float | None = None
        self._began = self._last = self._waited_before = 0.0
        self._restart_clock()
        self._shown = self._began
        self.requests = Requests(live)
        self.profile: StepProfile | None = None
        moved, poll = lambda: self.heartbeat.beat, self.requests.poll
        self.live = Live(live, self.state, moved, poll=poll) if live else None
        self._idle = kind == "none" and not live

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.display.start()
        if self.live:
            self.live.start()
        return self

    def take_profile(self) -> int:
        """Return the number of a new request to profile, once; 0 if there is none."""
        if number := self.requests.profile:  # a thread may set it meanwhile
            self.requests.profile = 0
        return number

    def request_profile(self, number: int) -> None:
        """Profile the next steps of this rank, if the request with this number, which all ranks know now, names it; 0: no request."""
        if number and self.profile:
            self.profile.request(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.profile:
            self.profile.close()
        if self.bar:
            self.bar.display.stop()
        if self.live:
            self.live.close()
        rates = self.throughput.summary() if kind is None else None
        if rates:
            self.note(f"training speed: {rates}{_efficiency_phrase(self.heartbeat.efficiency.value)}")

    def add_batches(
        self,
        epoch: int,
        batch: int,
        metrics: Mapping[str, float] | None = None,
        units: float | None = None,
        count: int = 1,
        loss: Callable[[], float] | None = None,
    ) -> None:
        """Count finished training batches, and update the display if it is due; else the call costs next to nothing.

        Args:
            epoch: number of the epoch, from 0.
            batch: number of the last finished batch in the epoch, from 0.
            metrics: the metrics, if they are reported now.
            units: number of units over all ranks since the last report; None if a unit is a row.
            count: batches finished since the last call.
            loss: returns the loss of this rank; called only if no metrics came for seconds, since it waits for the device.
        """
        if self._idle:
            return
        self._unreported += count
        if units is not None:
            self.rows = self.throughput.rows = units / self._unreported
        self._unreported = 0 if metrics else self._unreported
        first = bool(metrics) and not self.metrics and batch < self.plan.train_batches - 1
        self.metrics.update(metrics or {})
        self.throughput.add_batches(synchronized=bool(metrics), count=count)
        self._batches += count
        self._last = time.monotonic()
        self._at = (epoch, batch)
        self._first = self._first or (self._last, self._steps(epoch, batch))
        if metrics:
            self._recent, self._measured = {}, self._last
        elif loss and self._last - self._measured >= (
            LINE_EVERY_S if self.metrics or self._recent else SLOW_S
        ):
            first = not self.metrics and not self._recent
            self._recent, self._measured = {"loss": loss()}, self._last
        wait = DRAW_EVERY_S if self.bar else LINE_EVERY_S
        if (self._last - self._shown >= wait or first) and self.kind != "none":
            self._shown = self._last
            self._show(epoch, batch)

    def end_epoch(self, epoch: int, metrics: Mapping[str, float], batch: int | None = None) -> None:
        """Show the end of an epoch, or a validation within it, with the metrics including those of the validation.

        `epoch` and `batch`, the last batch done, count from 0; None: the last batch of the epoch.
        """
        if self._idle:
            return
        self.metrics.update(metrics)
        batch = self.plan.train_batches - 1 if batch is None else batch
        self._at = (epoch, batch)
        self._show(epoch, batch)
        if self.bar:
            at, step, *rest = self._parts(epoch, batch)
            rest.sort(key=lambda part: not part.startswith("val"))  # a narrow terminal cuts the end off
            parts = [
                part if part[0].isdecimal() else f"{part:<{part.index(' ') + 8}}" for part in rest
            ]  # columns
            self.bar.print(fit_parts([at, *parts, step], self.bar.width).rstrip())
        self._restart_clock()
        self.throughput.pause()
        self._shown = self._began

    def start_training(self, step: int) -> None:
        """Start the clock before the first batch, after `step` optimizer steps of earlier attempts; the time before was not training."""
        if not self.counts_units:  # the plan of a user's module is known only now
            self.rows = self.throughput.rows = self.plan.batch_per_rank * self.devices
        if self.bar:
            self.bar.set_total(self.plan.total_steps * self.plan.accumulate)
        self._restart_clock()
        self._measured = self._began
        if self.profile:
            self.profile.after_step(step)

    def state(self) -> dict[str, Any]:
        """Return the content of live.json; another thread calls it."""
        epoch, batch = self._at or (0, -1)
        step, newest = self._steps(epoch, batch), self.newest()
        return {
            "section": self.heartbeat.name,
            "epoch": epoch + 1,
            "epochs": self.plan.max_epochs,
            "step": step if self._at else None,
            "steps": self.plan.total_steps if self.plan.steps_known else None,
            "rate": self._speed(),
            "unit": self.unit,
            "seconds_left": self._seconds_left(step),
            "metrics": {name: float(value) for name, value in {**self.metrics, **self._recent}.items()},
            "checkpoint": {"step": newest.step, "time": _publication_time(newest)} if newest else None,
            "data_wait": self._data_wait(),
            "efficiency": self.heartbeat.efficiency.value,
        }

    def note(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self.bar:
            self.bar.print(text)
        elif self.kind == "plain":
            print(text, flush=True)

    def line(self, epoch: int, batch: int) -> str:
        """Return a line such as `epoch 3/10  step 69/230  train/loss 0.123  ...  lr 0.001  1234 samples/s`."""
        return "  ".join(self._parts(epoch, batch))

    def _parts(self, epoch: int, batch: int) -> list[str]:
        of = f"/{self.plan.total_steps}" if self.plan.steps_known else ""
        step = f"step {self._steps(epoch, batch)}{of}"
        parts = [f"epoch {epoch + 1}/{self.plan.max_epochs}", step]
        parts += [f"{name} {value:.4g}" for name, value in (self.metrics | self._recent).items()]
        if self._last > self._began and self.rows:
            rate = self._batches * self.rows / (self._last - self._began)
            parts.append(f"{rate:.0f} {self.unit}/s{self.throughput.peak_share(rate)}")
        return parts

    def _show(self, epoch: int, batch: int) -> None:
        if self.bar:
            self.bar.draw(
                _batches_done(self.plan, epoch, batch),
                f"epoch {epoch + 1}/{self.plan.max_epochs}",
                self._recent or self.metrics,
            )
        elif self.kind == "plain":
            print(self.line(epoch, batch), flush=True)

    def _steps(self, epoch: int, batch: int) -> int:
        """Return the number of optimizer steps done after a batch; user code may have skipped some batches."""
        if self.steps_done:
            return self.steps_done()
        return min(self.plan.total_steps, _batches_done(self.plan, epoch, batch) // self.plan.accumulate)

    def _speed(self) -> float | None:
        """Return the units per second since the clock was restarted; the last known value if there are none yet."""
        batches, seconds = self._batches, self._last - self._began
        if batches and seconds > 0 and self.rows:
            self._rate = round(batches * self.rows / seconds, 3)
        return self._rate

    def _seconds_left(self, step: int) -> float | None:
        """Return the estimated seconds to the end of the run, at the pace of this attempt including validations and checkpoints."""
        if self._first is None or step <= self._first[1] or not self.plan.steps_known:
            return None
        each = (max(self._last, self.heartbeat.beat) - self._first[0]) / (step - self._first[1])
        return round(each * (self.plan.total_steps - step), 1)

    def _data_wait(self) -> float | None:
        """Return the share of time spent waiting for data since the clock was restarted; the last known value if it just was."""
        seconds = self._last - self._began
        if seconds > 0:
            self._waits = round(min(1.0, max(0.0, self.heartbeat.data - self._waited_before) / seconds), 4)
        return self._waits

    def _restart_clock(self) -> None:
        """Restart the clock, so that the speed excludes the validation and checkpoint at the end of an epoch."""
        self._batches = 0
        self._waited_before = self.heartbeat.data
        self._began = self._last = time.monotonic()


def _publication_time(checkpoint: SavedCheckpoint) -> float | None:
    """Return the Unix time at which a checkpoint was published; None if it no longer exists."""
    try:
        return round(checkpoint.path.stat().st_mtime, 1)
    except OSError:
        return None


def _efficiency_phrase(known: float | None) -> str:
    """Return the share of a step in which several ranks don't wait for each other as a phrase; empty if it was not measured."""
    return "" if known is None else f", efficiency {known:.0%}"


def _batches_done(plan: Plan, epoch: int, batch: int) -> int:
    return epoch * plan.train_batches + batch + 1
