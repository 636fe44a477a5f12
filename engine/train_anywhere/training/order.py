"""The order of a run: `train` of src/train.py calls the methods of a `Training`, in each process of the run."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from train_anywhere.checkpoints.disk.manifest import OWN_LOOP, CheckpointInfo
from train_anywhere.checkpoints.recovery import open_checkpointer
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank, Step
from train_anywhere.job.rank_process import RankProcess, TrainingStopped
from train_anywhere.monitor.live import Live, Requests
from train_anywhere.runs.attempts import Outcome
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.training.plan import refuse_parts

__all__ = ["Training"]

SHARDS = "train_anywhere.data.shards.open.open_shards"
"""The target of data=shards."""

State = Literal["completed", "preempted", "failed"]


class OwnLoop:
    """The checkpoints, metrics and status of one rank of a loop in place of `fit`; only rank 0 writes.

    `share` returns the value of rank 0, of JSON types, on all ranks. Raises CheckpointError: the newest checkpoint was written by `fit`.

    Attributes:
        saved: folder of the newest intact checkpoint, None in a new run.
        step, epoch: the last finished step, and the epoch of the next one, from 0.
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

    def close(self, state: State) -> Outcome | None:
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


class Training(ABC):
    """What a run is made of in one of its processes, step by step; `stack` holds what is open until it ends."""

    def __init__(self, config: Config, process: RankProcess) -> None:
        self.config, self.process, self.stack = config, process, ExitStack()
        self._loop: OwnLoop | None = None
        self._fits = False

    def run(self) -> Outcome:
        """Train and test in the order of src/train.py, and return what the run has reached. Raises errors.

        With `train=` the function that it names is called instead.
        """
        state: State = "failed"
        with self.stack:
            try:
                if self.config.train:
                    locate(self.config.train, "train")(self)
                else:
                    trainer, data = self.make_trainer(), self.open_data()
                    model = self.make_model(data)
                    self.fit(trainer, model, data)
                    self.test(trainer, model, data)
                state = "completed"
            except TrainingStopped:
                state = "preempted"
            except SystemExit as end:
                if isinstance(end.__context__, KeyboardInterrupt):  # Lightning exits at the second Ctrl-C
                    raise end.__context__ from None
                raise
            finally:
                outcome = self.close(state)
                if self._loop:
                    outcome = self._loop.close(state)
        if outcome is None:
            raise ConfigError(
                f"train={self.config.train} has trained nothing: let it call run.fit, or loop over run.steps."
            )
        return outcome

    @abstractmethod
    def make_trainer(self) -> Any:
        """Return Lightning's Trainer, or the strategy of Keras, after the ranks have connected."""

    @abstractmethod
    def open_data(self) -> Any:
        """Return the splits of `data=`. Raises DataError."""

    @abstractmethod
    def make_model(self, data: Any) -> Any:
        """Return the module or the compiled model of `task=`. Raises ConfigError, DataError."""

    @abstractmethod
    def fit(self, trainer: Any, model: Any, data: Any) -> None:
        """Train from the newest checkpoint, if there is one. Raises TrainingStopped after a signal."""

    @abstractmethod
    def test(self, trainer: Any, model: Any, data: Any) -> None:
        """Test the best checkpoint, or the weights of now if there is none."""

    @abstractmethod
    def any_rank(self, flag: bool) -> bool:
        """Return whether the flag is true on a rank. All ranks call this."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Return the value of rank 0, of JSON types. All ranks call this."""

    @abstractmethod
    def close(self, state: State) -> Outcome | None:
        """Close what `fit` has opened, and return what the run has reached; None after a failure or without `fit`."""

    # --- for a loop in place of `fit`: docs/how-to/own-loop.md --------------------------------------------

    @property
    def newest(self) -> Path | None:
        """The folder of the newest intact checkpoint that `steps` has saved; None in a new run."""
        return self._own_loop().saved

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Yield this rank's batches from the step of the newest checkpoint on, without end. Raises ConfigError for a user's loader."""

    def steps(self, count: int, save: Callable[[Path], None], every: int = 100) -> Iterator[int]:
        """Yield the numbers of the steps that are left, from 1 in a new run, and save in between.

        Args:
            count: steps of the whole run.
            save: writes all that a resume needs into an empty folder; only rank 0 calls it.
            every: steps from one checkpoint to the next.

        Raises:
            TrainingStopped: a signal came to a rank, and the state of the last step is saved. Let it pass.
            CheckpointError: a checkpoint can't be written.
        """
        loop, stop = self._own_loop(), self.process.stop
        often = 1 if self.process.topology.world_size == 1 else self.config.trainer.log_every_n_steps
        for step in range(loop.step + 1, count + 1):
            yield step
            loop.step = step
            self.process.heartbeat.trained_batch(step)
            last = step == count
            stops = (step % often == 0 or last) and self.any_rank(stop.requested is not None)
            loop.save_if(stops or last or step % every == 0, save)
            if stops and not last:
                raise TrainingStopped

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Write metrics of a step, such as `{"train/loss": 0.5}`, to metrics.csv, the report and run.json."""
        numbers = {
            name: float(getattr(value, "item", lambda v=value: v)()) for name, value in metrics.items()
        }
        self._own_loop().log(step, numbers)

    def log_test(self, metrics: Mapping[str, SupportsFloat]) -> None:
        """Write the values of a test after the last step, under names such as `test/loss`."""
        self.log(self._own_loop().step, {f"test/{n.removeprefix('test/')}": v for n, v in metrics.items()})

    def refuse_others(self, **passed: tuple[Any, Any]) -> None:
        """Raise ConfigError if `fit` gets another object than it would use: `trainer=(passed, used)`."""
        for name, (given, used) in passed.items():
            if given is not used:
                raise ConfigError(
                    f"run.fit got another {name} than {'make_model' if name == 'data' else 'make_' + name}; set its keys or its _target_ "
                    "instead, or write a loop of your own (docs/how-to/own-loop.md)."
                )

    def _own_loop(self) -> OwnLoop:
        if self._fits:
            raise ConfigError(
                "run.steps, run.log and run.newest are for a loop in place of run.fit; use one of both."
            )
        refuse_parts(self.config, "loop of your own")
        self._loop = self._loop or OwnLoop(self.config, self.process, self.share)
        return self._loop


def index_shards(config: Config, process: RankProcess) -> None:
    """Write the index of data=shards, before the ranks connect. Raises DataError."""
    if config.data.target.get(config.framework) == SHARDS:
        from train_anywhere.data.shards.open import index_ahead

        before = process.run.read_info().get("data")
        facts = index_ahead(config.data.arguments, before, process.heartbeat.pulse)
        if process.recorder:
            process.recorder.record_facts({"data": facts})
