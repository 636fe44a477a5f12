"""Checkpoints and metrics of a loop that stands in src/train.py in place of `run.fit`."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

from train_anywhere.checkpoints.disk.manifest import OWN_LOOP, CheckpointInfo
from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank, Step
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.monitor.live import Live, Requests
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.metrics_csv import CsvLog


class OwnLoop:
    """The checkpoints, metrics and status of one rank; only rank 0 writes.

    Args:
        share: returns the value of rank 0, of JSON types, on all ranks.

    Attributes:
        saved: folder of the newest intact checkpoint, None in a new run.
        step, epoch: the last finished step, and the epoch of the next one, from 0.

    Raises:
        CheckpointError: the newest checkpoint was written by `fit`.
    """

    def __init__(self, config: Config, process: RankProcess, share: Callable[[Any], Any]) -> None:
        self.config, self.process = config, process
        run, recorder, self.epoch = process.run, process.recorder, 0
        self.metrics: dict[str, float] = {}
        self._checkpointer = open_checkpointer(config.checkpoint, run) if recorder else None
        newest = self._checkpointer.store.newest_good() if self._checkpointer else None
        found = share([str(newest.path), newest.step, newest.framework] if newest else None)
        if found and found[2] != OWN_LOOP:
            raise CheckpointError(
                f"{found[0]} was written by run.fit, and its files are not those of a loop of your own; start a new run, or use run.fit."
            )
        self.saved = Path(found[0]) if found else None
        self.step = self._first = found[1] if found else 0
        self._began = time.monotonic()
        self._requests = Requests(run.path if recorder else None)
        self._observers = Observers(Features.of(config).observers(Rank(run, 0, process.topology.world_size)))
        if newest:
            self.metrics |= newest.metrics
        if recorder:
            recorder.record_first_step(self.step)
            recorder.follow(lambda: self.step)
            self._csv = CsvLog(run.metrics_csv)
            self._csv.resume(self.step)
            beat = lambda: process.heartbeat.beat  # noqa: E731
            self._live = Live(run.path, self._describe, beat, poll=self._requests.poll)
            self._live.start()
        process.heartbeat.enter("step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a row of metrics, and pass it to the observers of features."""
        self.metrics |= metrics
        if self.process.recorder:
            self._csv.write(step, self.epoch + 1, metrics)
        self._observers.after_step(Step(step, self.epoch, 0, dict(metrics)))

    def save_if(self, due: bool, write: Callable[[Path], None]) -> None:
        """Let rank 0 write the files of a checkpoint if one is due, or requested by a feature or by `jobs.py save`.

        It is published in the background. Raises CheckpointError: an earlier one could not be written.
        """
        if not (due or self._requests.save or self._observers.requests_checkpoint()):
            return
        began = time.monotonic()
        if self._checkpointer:
            value = self.metrics.get(self.config.checkpoint.monitor or "")
            info = CheckpointInfo(self.step, self.epoch, 0, self.metrics, value, OWN_LOOP)
            with self.process.heartbeat.within("checkpoint"):
                self._checkpointer.wait()
                self._checkpointer.save(write, info)
                self._checkpointer.wait()  # the files are on this node's disk: the state may change again
        self._observers.after_checkpoint(time.monotonic() - began)
        self._requests.saved(self.step)

    def close(self, state: Literal["completed", "preempted", "failed"]) -> Outcome | None:
        """Publish the last checkpoint, and return what the loop has reached; None after a failure."""
        if self.process.recorder:
            self._live.close()
        newest = None
        if self._checkpointer:
            with suppress(CheckpointError) if state == "failed" else nullcontext():  # the first error counts
                self._checkpointer.close()
            newest = self._checkpointer.newest
        if state == "failed":
            return None
        path = str(newest.path) if newest else None
        return Outcome(state, self.epoch, self.step, self.metrics, path, self._rate(), "steps")

    def _rate(self) -> float | None:
        done, seconds = self.step - self._first, time.monotonic() - self._began
        return round(done / seconds, 3) if done and seconds else None

    def _describe(self) -> dict[str, Any]:
        """Return the content of live.json. Another thread calls it."""
        known = {"section": self.process.heartbeat.name, "step": self.step, "epoch": self.epoch + 1}
        return known | {"metrics": {**self.metrics}, "rate": self._rate(), "unit": "steps"}
