"""The supervisor: it starts the ranks, passes signals on, and restarts or requeues them."""

import math
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from train_anywhere.errors import NOT_FINITE, REFUSED, STOPPED, CheckpointError, ProjectError
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.job.restart import Nodes, decide, read_failure
from train_anywhere.job.signals import STOPS, Signals, StoppedAtStart
from train_anywhere.monitor.ranks import short
from train_anywhere.monitor.report import write_run_report
from train_anywhere.runs import attempts as records
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now

KILLED = 128 + signal.SIGKILL
"""Exit code of killed ranks, among others those that hung: see features/hangs/stacks.py."""

POLL_S = 0.05
"""Seconds between two looks at the ranks."""

REPEAT_S = 5.0
"""Seconds after which a signal is sent again: a launcher that is still starting ranks may lose it."""

MOST_STARTS = 3
"""Starts of the ranks in a row without a new step, after which a job ends."""


class Ranks(Protocol):
    """One start of the ranks."""

    def poll(self) -> int | None:
        """Return the exit code as of a shell (128 + n for signal n), or None while they run."""

    def pass_on(self, name: str) -> None:
        """Pass a signal on: in a job USR1 to save and go back to the queue, TERM to end."""

    def stop(self) -> None:
        """End the ranks without a checkpoint."""

    def first_exit(self) -> str:
        """Return the rank that was killed first, such as `rank 1 on n1: SIGKILL`, or ""."""

    failed_at: float | None
    """Unix time at which the first rank was seen to have ended, if known."""


class RankPlace(ABC):
    """The place where the ranks run: a job, or, as the defaults are, this machine.

    Attributes:
        program: whether they run a program (src/run.py).
        announces: whether a line about a stop is printed; the ranks of this machine print it themselves.
        retries: `cluster.retries`; None if the ranks never start again.
        requeues: whether a job can be requeued.
        code: the exit code of the job, None as long as it is not known.
        several: whether there are several ranks.
    """

    run: RunDir
    program = False
    announces = requeues = False
    retries: int | None = None
    code: int | None = 0
    several = False
    environ: dict[str, str]

    @abstractmethod
    def start(self, number: int) -> Ranks:
        """Start the ranks for the `number`-th time, from 0. Raises StoppedAtStart if a signal came meanwhile."""

    @abstractmethod
    def publish(self, again: bool = False) -> None:
        """Publish the complete checkpoints that killed ranks left on a node's disk.

        Args:
            again: the ranks start on the same nodes, and rank 0 publishes those of its node itself.
        """

    @abstractmethod
    def stop(self) -> None:
        """Let the ranks save a checkpoint and end."""

    def explain(self, name: str) -> str:
        """Return the signal that the ranks get after a signal: USR1, TERM or, on this machine, the same."""
        return name

    def find_nodes(self) -> Nodes:
        """Return the nodes of an elastic job, and those that answer."""
        return Nodes((), (), 1)

    def use_nodes(self, nodes: tuple[str, ...]) -> None:  # noqa: B027
        """Start the ranks on these nodes from now on."""

    def run_on_each_node(self, command: Sequence[str]) -> None:  # noqa: B027
        """Run a command once on each node of a job before the ranks start. A signal ends it."""

    def in_container(self, *words: str) -> list[str]:
        """Return a command of the ranks' Python, inside the container if there is one."""
        return [sys.executable, *words]


@dataclass(frozen=True)
class End:
    """The facts about a start of the ranks that has ended.

    Attributes:
        code: exit code of the launcher.
        state: state in run.json; None if it has none.
        begun: whether rank 0 has recorded its start.
        requested: whether a signal asked to stop.
        hung: whether the monitor killed the ranks.
        ranks_of_program: whether they are several processes of a program, which record nothing themselves.
    """

    code: int
    state: str | None
    begun: bool
    requested: bool = False
    hung: bool = False
    ranks_of_program: bool = False

    @property
    def preempted(self) -> bool:
        """True if the ranks have saved and stopped.

        A rank of a program may have been killed: the launcher then stops the others, for which that looks like a preemption.
        """
        killed = self.ranks_of_program and self.code == KILLED and not self.requested and not self.hung
        return self.state == "preempted" and not killed

    @property
    def running(self) -> bool:
        """True if run.json still has the ranks as running."""
        return self.begun and (self.state == "running" or (self.state == "preempted" and not self.preempted))

    def judge(self) -> str:
        """Return the first of `VERDICTS` that applies."""
        return next(verdict for verdict, applies in VERDICTS if applies(self))

    def leaves_files(self, code: int) -> bool:
        """Return whether checkpoints may be left on a node's disk, for the exit code of the job."""
        failed = code not in (0, STOPPED, REFUSED) and not self.preempted
        ended = (self.code == 0 and self.running) or (self.code == STOPPED and not self.requested)
        return failed or self.hung or (self.ranks_of_program and ended)


VERDICTS: tuple[tuple[str, Callable[[End], bool]], ...] = (
    ("stopped", lambda end: end.preempted),
    ("unrecorded", lambda end: end.code == 0 and end.running),
    # the signal killed ranks that did not handle it yet
    ("stopped", lambda end: end.requested and end.code != 0 and (end.code > 128 or not end.begun)),
    ("ended", lambda end: end.code in (0, NOT_FINITE)),
    ("failed", lambda end: end.running or (end.begun and end.state == "failed")),
    ("ended", lambda end: True),
)
"""Verdicts about an end, in the order in which they are checked.

The ranks saved and stopped; they exited with 0 and recorded nothing; they failed, which the supervisor records; or they recorded
their end."""


class Supervisor:
    """The supervisor of the ranks of a run.

    Attributes:
        hung: whether the ranks were killed because they hung, and saved no checkpoint.
        reason: the first cause of the failure of the last start; empty if it did not fail, or the cause is not known.
    """

    def __init__(self, place: RankPlace, signals: Signals) -> None:
        self.place, self.signals, self.run = place, signals, place.run
        self.hung, self.reason = False, ""
        self._starts, self._reached, self._used, self._seen = 0, -1, 0, 0.0
        # whether a signal has ended the first rank, rank 0 has recorded the failure, and checkpoints may be left on a node's disk
        self._killed = self._recorded = self._left_files = False

    def supervise(self) -> int:
        """Start the ranks until the run ends or must stop (`STOPPED`), and return the code."""
        code = self._supervise()
        if self._left_files:
            self.place.publish()
        again = self.place.retries is not None and not self.place.program
        if again and code not in (0, STOPPED) and self.run.read_state() == "failed":
            from train_anywhere.features import describe
            from train_anywhere.runs.reopen.frozen import load_frozen

            # the ranks left the report to a further start, and print why a configuration can't be read
            with suppress(ProjectError):
                for line in write_run_report(load_frozen(self.run), self.run, describe):
                    print(line, flush=True)
        return code

    def _supervise(self) -> int:
        if self.run.read_state() == "completed":
            print("This run is complete: nothing to do.", flush=True)
            return 0
        number = 0
        while True:
            code = self._start_once(number)
            complete = self.run.read_state() == "completed"
            # where the ranks of this machine hung, the monitor is not started again
            hung = self.hung and self.place.announces
            final = code != STOPPED if hung else self.hung or code == STOPPED
            if code == 0 or final or complete or self.signals.requested or self.place.retries is None:
                return code
            decided = self._decide(code)
            self.signals.wait(0)
            # a stop that was requested meanwhile: the next start of the job continues
            if decided or self.signals.requested:
                return STOPPED if decided == STOPPED or self.signals.requested else code
            self.note_end()
            number += 1

    def _start_once(self, number: int) -> int:
        info, job = self.read_info(), records.running_job()
        attempts = info.get(ATTEMPTS) or []
        before, state = len(attempts), info.get("state")
        own = job and state == "running" and [a.get("job") for a in attempts[-1:]] == [job]
        if state == "preempted" or own:  # of an earlier start
            with suppress(OSError, CheckpointError):
                self.run.update(state="queued")
        try:
            self.signals.wait(0)
            if self.signals.requested:
                raise StoppedAtStart
            ranks = self.place.start(number)
        except StoppedAtStart:
            print(f"Asked to stop ({self.signals.requested}) before the ranks were started.", flush=True)
            return STOPPED
        code = self._wait(ranks, before)
        self._seen = ranks.failed_at or time.time()
        return self._judge(code, ranks, before)

    def _wait(self, ranks: Ranks, before: int) -> int:
        """Wait for the ranks and pass signals on, and return their exit code."""
        repeat, passed = math.inf, ""
        while (code := ranks.poll()) is None:
            for name in self.signals.wait(POLL_S):
                shown, meaning = STOPS.get(name, name), self.place.explain(name)
                if not self.place.announces:
                    ranks.pass_on(name)
                elif passed in ("", "USR1") and passed != meaning:
                    what = "program" if self.place.program else "ranks to save a checkpoint"
                    print(f"Asked to stop ({shown}): telling the {what}.", flush=True)
                    ranks.pass_on(passed := meaning)
                    # ranks that have begun handle it; a second one could kill a rank that is exiting
                    repeat = math.inf if self._begun(before) else time.monotonic() + REPEAT_S
                elif shown == self.signals.requested == "Ctrl-C":
                    ranks.stop()
            if time.monotonic() >= repeat:
                repeat = math.inf
                # ranks that have not begun have nothing to save
                if self._begun(before):
                    ranks.pass_on(passed)
                else:
                    ranks.stop()
        self.signals.wait(0)
        return code

    def _begun(self, before: int) -> bool:
        """Return whether rank 0 of this job has recorded its start since the ranks were started."""
        attempts = self.read_info().get(ATTEMPTS) or []
        return len(attempts) > before and attempts[-1].get("job") == records.running_job()

    def _judge(self, code: int, ranks: Ranks, before: int) -> int:
        """Record the end of this start, and return its exit code."""
        self.reason, self._killed, self._recorded = "", False, False
        self.hung = records.was_killed(self.run, records.start_of_job(self.place.environ))
        state, several = self.run.read_state(), self.place.program and self.place.several
        end = End(code, state, self._begun(before), bool(self.signals.requested), self.hung, several)
        verdict = end.judge()
        code = STOPPED if verdict == "stopped" else code
        if verdict == "unrecorded":
            code = self._end_without_record(several)
        elif verdict == "failed":
            self._record_failure(code, ranks.first_exit(), recorded=state == "failed")
        self._left_files = end.leaves_files(code)
        return code

    def _end_without_record(self, ranks_of_program: bool) -> int:
        """Record the end of ranks that all exited with 0 without recording it."""
        if ranks_of_program and self.signals.requested:
            return STOPPED
        with suppress(OSError, CheckpointError):
            if self.place.program:
                self.run.update(state="completed")
                return 0
            why = f"the process of {self.run.path} exited with code 0 before the end of the run."
            print(why, file=sys.stderr)
            self.run.update(state="failed", ended=now())
        return 1

    def _record_failure(self, code: int, killed: str, recorded: bool) -> None:
        """Write the first cause of the failure into the newest attempt, if rank 0 did not."""
        # of a rank that failed for its own reason
        own = records.read_claim(self.run, records.CAUSE, self.place.environ)
        self.reason, self._killed = own or killed, not own and killed.startswith("rank ")
        self._recorded = recorded
        if recorded and not self.reason:
            return
        if not self.reason and code > 128:
            memory = ", often the memory limit" if code == KILLED else ""
            self.reason = f"a rank was killed by {records.describe_exit_code(code)}{memory}"
        self.reason = one_line(self.reason or records.describe_exit_code(code))
        if not recorded:
            print(f"{self.reason}.", flush=True)
        with suppress(OSError, CheckpointError):
            records.record_failure(self.run, self.reason)

    def _decide(self, code: int) -> int:
        """Decide whether the ranks start again, and return 0 or the code to exit with."""
        try:
            program, environ = self.place.program, self.place.environ
            failure = read_failure(self.run, code, program, self.reason, environ, self.hung)
            nodes = self.place.find_nodes()
        except CheckpointError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return 1
        self._starts = 1 if failure.step > self._reached else self._starts + 1
        self._reached = max(self._reached, failure.step)
        counts = self._starts >= MOST_STARTS and not self.place.program and not self.hung
        stuck = self._starts if counts else 0
        decision = decide(failure, nodes, self.place.retries or 0, self._used, self.place.requeues, stuck)
        print(f"again: {decision.reason}", file=sys.stderr, flush=True)
        if decision.without:
            with suppress(OSError):
                records.add_bad_node(self.run, decision.without)
        if decision.code == 0:
            left = tuple(node for node in nodes.left if short(node) != decision.without)
            self._used += left == nodes.used
            if self._left_files:
                self.place.publish(again=left == nodes.used)
            self._left_files = False
            self.place.use_nodes(left)
            with suppress(OSError, CheckpointError):
                self._record_restart()
        return decision.code

    def _record_restart(self) -> None:
        """Add the seconds of the detection and of the stop of the ranks to the newest attempt."""
        newest, parts = (records.extend_newest(self.run) or [{}])[-1], {}
        if self._killed:
            parts["detect"] = 0.0
        elif self._recorded and newest.get("until"):
            last = datetime.fromisoformat(newest["until"]).timestamp() - newest["seconds"].get("silent", 0.0)
            parts["detect"] = round(max(0.0, self._seen - last), 2)
        parts["stop"] = round(time.time() - self._seen, 2)
        self.run.update(**{ATTEMPTS: records.extend_newest(self.run, restart=parts)})

    def note_end(self) -> None:
        """Record the time at which this start of the batch script ended, for the report."""
        with suppress(OSError, CheckpointError, KeyError, ValueError, OverflowError):
            newest = (self.run.read_info().get(ATTEMPTS) or [{}])[-1]
            started = records.iso_from_unix(self.place.environ[records.STARTED])
            if newest.get("allocated") == started:  # else another job's
                self.run.update(**{ATTEMPTS: records.extend_newest(self.run, script_ended=now())})

    def read_info(self) -> Mapping[str, Any]:
        """Return run.json, or {} if it is damaged, which the ranks report."""
        with suppress(CheckpointError):
            return self.run.read_info()
        return {}
