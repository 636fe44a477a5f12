"""Rank 0's writer of run.json, and the reports of each rank."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import dumps, loads, read_json, read_text, write_atomic, write_with_folder
from train_anywhere.runs import attempts as records
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now


class RunRecorder:
    """Writer of run.json while a run trains, on rank 0; `time_spent` returns the seconds in each section, see `monitor/live.py`."""

    def __init__(self, run: RunDir, time_spent: Callable[[], Mapping[str, float]] | None = None) -> None:
        self.run, self.time_spent = run, time_spent
        self.steps_done: Callable[[], int] | None = None

    def follow(self, steps_done: Callable[[], int] | None) -> None:
        """Use this function, callable from any thread, for the number of optimizer steps done."""
        self.steps_done = steps_done

    def record_start(
        self,
        world_size: int,
        environ: Mapping[str, str] = os.environ,
        devices: int = 1,
        versions: Mapping[str, str] = {},
    ) -> None:
        """Record the start of an attempt. An earlier one without `ended_by` was killed."""
        run, info = self.run, self.run.read_info()
        with suppress(OSError):
            if (run.monitor / records.KILLED).exists():  # it was for an earlier attempt
                write_atomic(run.monitor / records.KILLED, "")
        attempts = info.get(ATTEMPTS, [])
        attempts[-1:] = [
            records.with_times(run, {"ended_by": "killed", **newest}) for newest in attempts[-1:]
        ]
        world = {"hosts": records.hosts(environ), "world_size": world_size, "devices": devices}
        attempt = {"started": now(), "job": records.running_job(environ), **world}
        with suppress(KeyError, ValueError, OverflowError, OSError):
            attempt["allocated"] = records.iso_from_unix(environ[records.STARTED])
        run.update_or_defer(
            state="running",
            world_size=world_size,
            hosts=attempt["hosts"],
            job_ids=records.job_ids(run, environ),
            started=info.get("started", attempt["started"]),
            ended=None,
            versions={**versions},
            restarts=len(attempts),
            **{ATTEMPTS: [*attempts, attempt]},
        )

    def record_facts(self, facts: Mapping[str, Any]) -> None:
        """Record facts of the model, data and device in run.json."""
        self.run.update_or_defer(**facts)

    def record_note(self, line: str) -> None:
        """Add a line to the report of the run. It stays when the run is resumed."""
        with suppress(CheckpointError):
            notes = dict.fromkeys([*self.run.read_info().get("notes", []), line])
            self.run.update_or_defer(notes=[*notes])

    def record_first_step(self, step: int) -> None:
        """Record the optimizer step that this attempt starts at."""
        run, attempts = self.run, self.run.read_info().get(ATTEMPTS)
        if not attempts:
            return
        if len(attempts) > 1:
            reached = max(step, records.read_logged_step(run), records.read_recorded_step(run))
            attempts[-2].setdefault("step", reached)
        records.record_step(run, step)
        attempts[-1]["from_step"] = step
        run.update_or_defer(**{ATTEMPTS: attempts})

    def record_end(self, outcome: records.Outcome, signal: str | None = None) -> bool:
        """Record the end of the attempt, and return whether run.json could be written."""
        facts = asdict(outcome) | {"rate": outcome.rate and round(outcome.rate, 3)}
        left_out = {"state"} if outcome.ended_by else {"state", "ended_by"}
        kept = {name: value for name, value in facts.items() if name not in left_out}
        return self.record_program_end(outcome.state, signal or outcome.state, **kept)

    def record_program_end(self, state: str, cause: str, **facts: Any) -> bool:
        """Record how a program ended, and return whether run.json could be written."""
        self._note_times()
        fields = {"step": facts["step"]} if facts else {}
        attempts = records.extend_newest(self.run, ended_by=cause, **fields)
        return self.run.update_or_defer(state=state, ended=now(), **facts, **{ATTEMPTS: attempts})

    def record_failure(self, reason: str) -> None:
        """Record that the attempt ended with an error. Raises OSError, CheckpointError."""
        self._note_times()
        step = {"step": self.steps_done()} if self.steps_done else {}
        records.record_failure(self.run, reason, **step)

    def record_progress(self) -> None:
        """Write the steps done and the time spent, every few seconds."""
        if self.steps_done is not None:
            records.record_step(self.run, self.steps_done())
        self._note_times()
        self.run.write_deferred()

    def _note_times(self) -> None:
        if self.time_spent is None:
            return
        with suppress(OSError):
            seconds = {name: round(value, 3) for name, value in self.time_spent().items()}
            write_with_folder(self.run.monitor / records.TIMES, dumps({"until": now(), "seconds": seconds}))


def try_to_record_failure(recorder: RunRecorder | None, reason: str) -> None:
    """Record the error of this rank's attempt on rank 0. Print if that is impossible."""
    try:
        if recorder:
            recorder.record_failure(reason)
    except (OSError, CheckpointError) as error:  # likely the error that failed the run, which is printed next
        print(f"run.json does not record that the run failed: {error}", file=sys.stderr, flush=True)


def report_location(run: RunDir, topology: Topology) -> None:
    """Report the node of this rank and the program that launched it."""
    host = node_name()
    line = (
        f"rank {topology.rank} of {topology.world_size}: local rank {topology.local_rank} of "
        f"{topology.local_world_size} on node {topology.node_rank} ({host}), started by {topology.launched_by}\n"
    )
    print(line, end="", flush=True)  # in one write: other ranks print at the same time
    _record(run, topology.rank, {"host": host, "launched_by": topology.launched_by})


def report_weights(run: RunDir, topology: Topology, weights: Iterable[bytes]) -> None:
    """Report a checksum of this rank's weights: ranks with equal weights have the same."""
    digest = hashlib.sha256()
    for part in weights:
        digest.update(part)
    checksum = digest.hexdigest()[:16]
    print(f"rank {topology.rank} of {topology.world_size}: weights {checksum}\n", end="", flush=True)
    known = read_json(run.path / "ranks" / f"{topology.rank}.json")
    _record(run, topology.rank, {**known, "weights": checksum})


def read_reports(run: RunDir) -> dict[int, dict[str, Any]]:
    """Return the reports by rank: `host`, `launched_by` and, after training, `weights`."""
    found = {}
    for path in (run.path / "ranks").glob("[0-9]*.json"):
        with suppress(OSError, ValueError, TypeError):  # an unreadable report counts as none
            found[int(path.stem)] = dict(loads(read_text(path)))
    return found


def _record(run: RunDir, rank: int, facts: dict[str, Any]) -> None:
    with suppress(OSError):  # the log has it too
        write_with_folder(run.path / "ranks" / f"{rank}.json", dumps(facts))
