"""The progress of a run: a bar on a terminal or lines in a log, its speed, and the values that `monitor/live.py` writes."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.files.removal import print_once
from train_anywhere.files.terminal.fit import fit
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import Live, Requests
from train_anywhere.training.plan import Plan
from train_anywhere.training.profile import Recording, StepProfile

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

STYLES = {"bar.complete": "color(31)", "bar.finished": "color(28)", "progress.remaining": "default"}
"""Colors that can be read on black and on white."""

LINE_EVERY_S = 10.0
"""Seconds between plain lines within an epoch."""

SLOW_S = 2.0
"""Seconds after which a run without metrics shows the loss of this rank."""

LOG_WIDTH = 80
"""Columns of a row in a log."""

DRAW_EVERY_S = 0.25
"""Seconds between redraws of the bar."""

MIN_MEASURED_S = 5.0
"""Seconds of measured intervals that a mean rate needs."""


class Throughput:
    """The speed of training: now, since the last validation, and on average over the intervals between two metric reports.

    At a metric report the device has finished. The first interval is left out: it includes compilation, memory allocation and the start of
    the input pipeline. `rows` are those, or the units, of one batch over all ranks, 0 if not known yet.
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
        """Return the rows, or units, per second since the last restart, else the last known rate."""
        seconds = self._last - self._began
        if seconds > 0 and self.rows:
            self._rate = self._shown * self.rows / seconds
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


class Progress:
    """The progress of one run over so many `devices`, a context manager. Rank 0 shows it, and writes monitor/live.json.

    The bar is a line at the bottom of the terminal, redrawn by the training thread itself: percentage, epoch, loss and time left.

    Args:
        facts: facts about the data set, such as the unit that is counted.
        recording: starts a profiler.
        newest: returns the newest checkpoint in the run folder.
        steps_done: returns the number of optimizer steps done, from any thread; None: all batches were trained.

    Attributes:
        kind: bar, plain or none, which other ranks have.
        metrics: the newest value of each metric.
        fresh: those measured since the last row.
        recent: the loss of this rank, if it is newer.
        profile: the profiles of this rank; None for a run that writes nothing.
        requests: requests of `jobs.py` to this run, read by the thread that updates live.json.
    """

    def __init__(
        self,
        config: Config,
        process: RankProcess,
        plan: Plan,
        devices: int,
        facts: Mapping[str, Any],
        recording: Callable[[Path, str], Recording],
        newest: Callable[[], SavedCheckpoint | None],
        steps_done: Callable[[], int] | None = None,
    ) -> None:
        rank, fast, run = process.topology.rank, config.trainer.fast_dev_run, process.run
        kind = "none" if rank else config.monitor.progress
        self.kind = kind if kind != "auto" else "bar" if sys.stdout.isatty() else "plain"
        self.bar = _make_bar(plan.total_steps * plan.accumulate) if self.kind == "bar" else None
        self.plan, self.units_per_row = plan, facts.get("units_per_row", 1)
        self.heartbeat, self.recorder = process.heartbeat, process.recorder
        self.throughput = Throughput(0, devices, facts.get("unit", "samples"), self.heartbeat)
        self.requests = Requests(None if rank or fast else run.path)
        self.metrics, self.fresh, self.recent = dict[str, float](), dict[str, float](), dict[str, float]()
        self._newest, self._steps_done = newest, steps_done
        self._measured = self._shown = time.monotonic()
        self._at: tuple[int, int] | None = None
        moved, poll = lambda: self.heartbeat.beat, self.requests.poll
        self.live = None if rank or fast else Live(run.path, self.state, moved, poll=poll)
        self._idle = self.kind == "none" and not self.live
        steps = config.trainer.profiler
        self.profile = None if fast else StepProfile(run, rank, steps, recording, self.note)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.profile:
            self.profile.close()
        if self.bar:
            self.bar.stop()
        if self.live:
            self.live.close()
        if kind is None and (rates := self.throughput.summary()):
            share = self.heartbeat.efficiency.value  # None for a single rank
            efficiency = "" if share is None else f", efficiency {share:.0%}"
            self.note(f"training speed: {rates}{efficiency}")

    def note(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self.bar:
            text = fit(text, self.bar.console.width)
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self.kind == "plain":
            print(text, flush=True)

    def report(self, line: str) -> None:
        """Print a line also without a display, and add it to the report of the run. Only rank 0 does."""
        if self.recorder:
            (print_once if self.kind == "none" else self.note)(line)
            self.recorder.record_note(line)

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
        self._measured = time.monotonic()
        if self.bar:
            self.bar.update(self.bar.task_ids[0], total=self.plan.total_steps * self.plan.accumulate)
        self.throughput.restart()
        if self.profile:
            self.profile.after_step(step)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Take new metrics."""
        self.metrics.update(metrics)
        self.fresh.update(metrics)

    def add_batches(
        self,
        epoch: int,
        batch: int,
        metrics: Mapping[str, float] | None = None,
        count: int = 1,
        loss: Callable[[], float] | None = None,
    ) -> None:
        """Count finished training batches, and update the display if it is due.

        `epoch` and `batch`, the last finished one, count from 0; `count` batches are finished since the last call. `loss` returns the loss
        of this rank. It is called only if no `metrics` came for seconds, since it waits for the device.
        """
        if self._idle:
            return
        self._at = (epoch, batch)
        self.throughput.add_batches(bool(metrics), count, self._steps())
        now, known = time.monotonic(), self.metrics or self.recent
        if metrics:
            first = not self.metrics and batch < self.plan.train_batches - 1
            self.measured(metrics)
            self.recent, self._measured = {}, now
        else:
            slow = bool(loss) and now - self._measured >= (LINE_EVERY_S if known else SLOW_S)
            first = slow and not known
            if loss and slow:
                self.recent, self._measured = {"loss": loss()}, now
        if first or now - self._shown >= (DRAW_EVERY_S if self.bar else LINE_EVERY_S):
            self._show()

    def end_epoch(self, epoch: int, metrics: Mapping[str, float], batch: int | None = None) -> None:
        """Show the end of an epoch, or a validation within it, with its metrics.

        `epoch` and `batch`, the last batch done, count from 0; None: the last batch of the epoch.
        """
        if self._idle:
            return
        self.measured(metrics)
        self._at = (epoch, self.plan.train_batches - 1 if batch is None else batch)
        first, step, *rest = self._show()
        if self.bar:  # the line of the epoch stands above it, in columns
            rest.sort(key=lambda part: not part.startswith("val"))
            columns = [p if p[0].isdecimal() else f"{p:<{p.index(' ') + 8}}" for p in rest]
            self._print_row([first, *columns, step], self.bar.console.width)
        self.throughput.restart()

    def state(self) -> dict[str, Any]:
        """Return the content of live.json. Another thread calls it."""
        step, newest, plan = self._steps(), self._newest(), self.plan
        saved: float | None = None
        if newest:
            with suppress(OSError):  # it may just have been removed
                saved = round(newest.path.stat().st_mtime, 1)
        left = self.throughput.seconds_left(step, plan.total_steps) if plan.steps_known else None
        rate = self.throughput.rate()
        return {
            "section": self.heartbeat.name,
            "epoch": (self._at or (0, 0))[0] + 1,
            "epochs": plan.max_epochs if plan.max_epochs < MAX_COUNT else None,
            "step": step if self._at else None,
            "steps": plan.total_steps if plan.steps_known else None,
            "rate": rate and round(rate, 3),
            "unit": self.throughput.unit,
            "seconds_left": left,
            "metrics": {n: float(v) for n, v in (self.metrics | self.recent).items()},
            "checkpoint": {"step": newest.step, "time": saved} if newest else None,
            "data_wait": self.throughput.data_wait(),
            "efficiency": self.heartbeat.efficiency.value,
        }

    def _show(self) -> list[str]:
        """Show where the run is, and return it in parts, such as `epoch 3/10` and `step 69/230`."""
        self._shown = time.monotonic()
        of = f"/{self.plan.total_steps}" if self.plan.steps_known else ""
        epochs = f"/{self.plan.max_epochs}" if self.plan.max_epochs < MAX_COUNT else ""
        parts = [f"epoch {(self._at or (0, 0))[0] + 1}{epochs}", f"step {self._steps()}{of}"]
        parts += [f"{name} {value:.4g}" for name, value in (self.fresh | self.recent).items()]
        if (rate := self.throughput.rate()) is not None:
            parts.append(f"{rate:.0f} {self.throughput.unit}/s")
        if self.bar:
            metrics = self.recent or self.metrics
            name = next((name for name in metrics if "loss" in name), "")
            short = name.removeprefix("train/").removeprefix("train_")
            loss, done = f"{short} {metrics[name]:.4g}" if name else "", self._batches_done()
            task = self.bar.task_ids[0]
            self.bar.update(task, completed=done, epoch=parts[0], loss=loss, refresh=True)
        else:
            self._print_row(parts, LOG_WIDTH)
        return parts

    def _print_row(self, parts: Sequence[str], width: int) -> None:
        """Print parts in rows of `width` columns, continued below the step."""
        self.note(fit("  ".join(parts), width, len(parts[0]) + 2))
        self.fresh = {}

    def _batches_done(self) -> int:
        epoch, batch = self._at or (0, -1)
        return epoch * self.plan.train_batches + batch + 1

    def _steps(self) -> int:
        """Return the number of optimizer steps done."""
        if self._steps_done:
            return self._steps_done()
        return min(self.plan.total_steps, self._batches_done() // self.plan.accumulate)


def _make_bar(total: int) -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.theme import Theme

    columns: list[Any] = [
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[epoch]}"),
        TextColumn("{task.fields[loss]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    ]
    bar = Bar(*columns, console=Console(theme=Theme(STYLES)), auto_refresh=False, expand=True)
    bar.add_task("", total=total, epoch="starting", loss="")
    return bar
