"""Rank 0's record of a run: attempts in run.json, and every few seconds the steps and the time spent."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.ordinary import make_folder, open_file
from train_anywhere.files.plain_json import dumps
from train_anywhere.runs.attempts import (
    ENDS,
    STARTED,
    TIMES,
    Outcome,
    count_step,
    counted_step,
    ended_attempts,
    hosts,
    job_ids,
    logged_step,
    moment,
    running_job,
    with_times,
)
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now


class RunRecorder:
    """Writes run.json while a run trains. Rank 0 has the only one.

    Args:
        time_spent: returns the seconds in each section of this attempt, see `monitor/times.py`.

    Attributes:
        steps_done: returns the optimizer steps done, from any thread; None before training starts.
    """

    def __init__(self, run: RunDir, time_spent: Callable[[], Mapping[str, float]] | None = None) -> None:
        self.run, self.time_spent = run, time_spent
        self.steps_done: Callable[[], int] | None = None

    def start(self, world_size: int, environ: Mapping[str, str] = os.environ, devices: int = 1) -> None:
        """Start an attempt on `devices`. An earlier attempt without `ended_by` was killed."""
        run = self.run
        with suppress(OSError):  # a second name of it keeps its content when the script appends
            open_file(run.monitor / ENDS, "rb+").close()
        info = run.info()
        attempts = info.get(ATTEMPTS, [])
        if attempts:
            attempts[-1] = with_times(run, {"ended_by": "killed", **attempts[-1]})
        world = {"hosts": hosts(environ), "world_size": world_size, "devices": devices}
        attempt = {"started": now(), "job": running_job(environ), **world}
        with suppress(KeyError, ValueError, OverflowError, OSError):
            attempt["allocated"] = moment(environ[STARTED])
        run.note(
            info,
            state="running",
            world_size=world_size,
            hosts=attempt["hosts"],
            job_ids=job_ids(run, environ),
            started=info.get("started", attempt["started"]),
            ended=None,
            restarts=len(attempts),
            **{ATTEMPTS: [*attempts, attempt]},
        )

    def first_step(self, step: int) -> None:
        """Training of this attempt starts at optimizer step `step`; call it before the rows after it leave metrics.csv."""
        run, info = self.run, self.run.info()
        attempts = info.get(ATTEMPTS)
        if not attempts:
            return
        for before in attempts[-2:-1]:
            before.setdefault("step", max(step, logged_step(run), counted_step(run)))
        count_step(run, step)
        attempts[-1]["from_step"] = step
        run.note(info, **{ATTEMPTS: attempts})

    def end(self, outcome: Outcome, signal: str | None = None) -> bool:
        """The attempt ended.

        Args:
            signal: name of the signal that stopped it, if one did.

        Returns:
            Whether run.json says so; it does not if the disk refuses.
        """
        self._note_times()
        return self.run.note(
            state=outcome.state,
            ended=now(),
            epoch=outcome.epoch,
            step=outcome.step,
            metrics=outcome.metrics,
            checkpoint=outcome.checkpoint,
            rate=outcome.rate and round(outcome.rate, 3),
            unit=outcome.unit,
            **{ATTEMPTS: ended_attempts(self.run, ended_by=signal or outcome.state, step=outcome.step)},
        )

    def failure(self) -> None:
        """The attempt ended with an error. Raises OSError, CheckpointError."""
        self._note_times()
        step = {"step": self.steps_done()} if self.steps_done else {}
        attempts = ended_attempts(self.run, ended_by="failed", **step)
        self.run.update(state="failed", ended=now(), **{ATTEMPTS: attempts})

    def count(self) -> None:
        """Record how far the attempt is; called every few seconds. What the disk refuses is written later."""
        if self.steps_done is not None:
            count_step(self.run, self.steps_done())
        self._note_times()
        self.run.catch_up()

    def _note_times(self) -> None:
        if self.time_spent is None:
            return
        with suppress(OSError):
            seconds = {name: round(value, 3) for name, value in self.time_spent().items()}
            content = dumps({"until": now(), "seconds": seconds})
            try:
                write_atomic(self.run.monitor / TIMES, content)
            except FileNotFoundError:
                # not made beforehand: nearly always it is there, and a shared disk answers slowly
                make_folder(self.run.monitor)
                write_atomic(self.run.monitor / TIMES, content)
