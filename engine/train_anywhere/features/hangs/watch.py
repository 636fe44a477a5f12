"""The watch of one node, and on the first node the decision for all.

every node        reads the heartbeats of its ranks, and writes them for the first node: RUN/monitor/ranks-<host>.json
the first node    reports missing, slow and hanging ranks in the log and in RUN/monitor/watch.json
every node        then writes the stack traces of its ranks, and with `monitor.hang=requeue` kills them
every node        answers `jobs.py debug` with the stack traces of its ranks

In synchronous training all steps take as long as those of the slowest rank: the others wait for it in collective operations. So the
detection of slow ranks compares a rank's own work: waiting for data, and computing until it waits for others (see `Heartbeat.computed`).
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from statistics import median
from typing import Any, Literal

from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.errors import listed
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.features.hangs import stacks
from train_anywhere.features.hangs.hangs import Hang, StartupWatch, describe, find_hang
from train_anywhere.files.atomic import dumps, read_json, write_with_folder
from train_anywhere.monitor import live
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.ranks import NodeRanks, OtherNodes, RankStatus, mappings, short
from train_anywhere.runs.attempts import ALLOCATION, add_bad_node, running_job, start_of_job
from train_anywhere.runs.facts import number
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path, resume_command

WINDOW_S, BATCHES = 10.0, 5
"""Own work is averaged over windows of 10 s, and at least 5 batches."""

RATIO, SHARE, WINDOWS = 1.3, 0.1, 3
"""A rank is slow if its own work takes 1.3 times the median of the others, and the difference is at least a tenth of the step, in 3
windows in a row: a short disturbance or a smaller share is not worth a message."""

CHANGE = 1.3
"""A slow rank is reported again if its factor changes by this ratio."""


class Stragglers:
    """Detects slow ranks from one update to the next, by their own work in windows of `window` seconds.

    Attributes:
        factors: for each slow rank, the time of its own work divided by the median of the others.
    """

    def __init__(self, window: float = WINDOW_S) -> None:
        self.window = window
        self.factors: dict[int, float] = {}
        self._from: dict[int, RankStatus] = {}
        self._rows: dict[int, list[float]] = {}
        self._reported: dict[int, float] = {}

    def update(self, ranks: Iterable[RankStatus]) -> list[str]:
        """Return lines for the log about ranks that became slow, changed or recovered."""
        now = {r.rank: r for r in sorted(ranks, key=lambda r: r.rank)}
        same = self._from.keys() == now.keys()
        pairs = [(self._from[n], r) for n, r in now.items()] if same else []
        if any(b.clock - a.clock < self.window or b.trained - a.trained < BATCHES for a, b in pairs):
            return []
        self._from = now
        own = sorted((b.own - a.own) / (b.trained - a.trained) for a, b in pairs)
        if len(own) < 2:
            return []
        # for a rank above the median of all, this is the median of the others
        middle, usual = median(own), median(own[:-1])
        return [line for a, b in pairs if (line := self._check(a, b, middle, usual))]

    def _check(self, before: RankStatus, after: RankStatus, middle: float, usual: float) -> str | None:
        number, batches = after.rank, after.trained - before.trained
        who = f"rank {number} on {after.host}"
        own = (after.own - before.own) / batches
        factor = own / usual if own > middle and usual > 0 else 1.0
        slow = factor >= RATIO and own - usual >= SHARE * (after.clock - before.clock) / batches
        rows = self._rows[number] = [*self._rows.get(number, []), factor][-WINDOWS:] if slow else []
        if not slow and number in self._reported and factor < (1 + RATIO) / 2:
            del self._reported[number], self.factors[number]
            return f"{who} is as fast as the others again."
        if len(rows) < WINDOWS:
            return None
        self.factors[number] = found = median(rows)
        if 1 / CHANGE < found / self._reported.get(number, 1e9) < CHANGE:
            return None
        self._reported[number] = found
        data = (after.data - before.data) / batches
        of_data = f", of which {1000 * data:.1f} ms wait for data" if data > own / 2 else ""
        return (
            f"{who} is slow: its own work takes {found:.1f} times as long as that of the others "
            f"({1000 * own:.1f} ms a batch{of_data}; median of the others {1000 * usual:.1f} ms), and all ranks wait for it."
        )


FILE = "watch.json"

STACKS_S = 4.0
"""Seconds for another node to write its stack traces, once it has read of the hang."""


def _host(hang: Hang) -> str | None:
    """Return the node that blocks the others, if it is a single one."""
    behind, waiting = {r.host for r in hang.behind}, {r.host for r in hang.waiting}
    return behind.pop() if len(behind) == 1 and waiting - behind else None


def print_line(line: str) -> None:
    """Print a line in the job's log."""
    print(f"watch: {line}", flush=True)


WRITES_PER_HANG, WRITES_PER_S = 20, 10
"""A node writes its file this often within `monitor.hang_minutes`, at intervals from 1 to 10 s, and all nodes together at most this often
per second: of 1,000 nodes, each writes every 100 s."""

ASKED_EVERY_S = 2.0
"""Least seconds between two looks for a request of `jobs.py debug`; many nodes look more rarely, like `WRITES_PER_S`."""


class HangWatch(Feature):
    """Watch the ranks of each node."""

    on_node = True

    def is_on(self) -> bool:
        """Return whether `monitor.hang_minutes` is set."""
        return self.config.monitor.hang_minutes is not None

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the service that watches the node's ranks."""
        return [lambda: Watch(run, self.config, host)]

    def in_rank(self, heartbeat: Heartbeat) -> AbstractContextManager[None]:
        """Return the context in which this process writes its stack traces on SIGUSR2."""
        return stacks.written_on_signal(heartbeat)

    def verdicts(self, facts: Any) -> Iterator[str]:
        """Yield sentences about ranks that did not start, that hang or hung, or are slow."""
        watch = facts.watch
        late, hang, hangs = watch.get("late"), watch.get("hang"), mappings(watch.get("hangs"))
        if isinstance(late, list) and late:
            yield f"not started yet: rank{'s' if len(late) > 1 else ''} {listed(late)}."
        if isinstance(hang, Mapping) and hang.get("line"):
            yield str(hang["line"])
        elif hangs:
            steps = listed(str(h.get("step")) for h in hangs)
            yield f"the run hung at step {steps} and was stopped: see the stack traces in monitor/."
        for rank in mappings(watch.get("slow")):
            if "rank" in rank and (factor := number(rank.get("factor"))) is not None:
                host = next((n.host for n in facts.present if rank["rank"] in n.ranks_here), None)
                where = f" on {host}" if host else ""
                yield f"rank {rank['rank']}{where} took {factor:.1f} times as long as the others for its own work, and all wait for it."


class Watch:
    """Service that watches the ranks of one node, and on the first one decides for all what happens at a hang.

    Attributes:
        bound: seconds of silence that always count as a hang.
        end, requeue: whether a hang ends the run, and whether its job is then requeued.
        restart: whether the job may restart the ranks before.
        others: the other nodes, on the first one.
    """

    every_seconds = 1.0

    def __init__(
        self, run: RunDir, config: Config, host: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        monitor, cluster, job = config.monitor, config.cluster, environ.get("SLURM_JOB_ID")
        expected = hosts_by_rank(environ.get("TRAIN_HOSTS", ""))
        least = len({*expected.values()}) / WRITES_PER_S
        self.bound, self.end = 60 * (monitor.hang_minutes or 0.0), monitor.hang == "requeue"
        every = max(min(10.0, max(self.every_seconds, self.bound / WRITES_PER_HANG)), least)
        self.run, self.node, self.file = run, NodeRanks(run, host), run.monitor / FILE
        self.start, self.in_job = start_of_job(environ), running_job(environ) is not None
        self.requeue = cluster.requeue and job not in (None, environ.get(ALLOCATION))
        self.restart = cluster.retries > 0 and self.in_job
        # on PBS only the first node has a monitor process
        on_pbs = not job and environ.get("PBS_JOBID")
        unwatched = [rank for rank, name in expected.items() if short(name) != short(host)] if on_pbs else ()
        self.startup, self.stragglers = StartupWatch(expected, unwatched=unwatched), Stragglers()
        first = not expected or short(expected[0]) == short(host)
        self.others = OtherNodes(run, host, every) if first else None
        self.interval, self.patience = every, 2 * every + STACKS_S
        hangs = mappings(read_json(self.file).get("hangs")) if first else []
        self.hangs = [h for h in hangs if isinstance(h.get("step"), int)]
        self.hang: dict[str, Any] | None = None
        self._numbers, self._since, self._ended = 0, 0.0, False
        self._wrote: Any = None
        self._handled: Any = None
        self._last: dict[str, float] = {}
        self._asked_every = max(ASKED_EVERY_S, least)
        self._asked = live.read_id(run.monitor / live.DEBUG)

    def poll(self, now: float) -> None:
        """Read the ranks, write their state, and decide about a hang, or act on the first node's decision. Raises OSError."""
        ranks = self.node.read()
        if self._is_due("write", self.interval):
            with suppress(OSError):
                self.node.write()
        if self._is_due("asked", self._asked_every):
            self._answer_debug(ranks)
        if self._ended:  # kill ranks again that could not be killed before
            stacks.kill(ranks)
        elif self.others:
            self._decide(ranks, ranks + self.others.read())
        elif self._is_due("read", self.interval):
            self._follow_decision(ranks)

    def _is_due(self, what: str, every: float) -> bool:
        if is_due := time.monotonic() - self._last.get(what, 0.0) >= every:
            self._last[what] = time.monotonic()
        return is_due

    def close(self) -> None:
        """Write the last state of the ranks, and remove leftover heartbeats."""
        with suppress(OSError):
            self.node.write()
        self.node.close()

    def _decide(self, own: list[RankStatus], ranks: list[RankStatus]) -> None:
        """Check all ranks now. `own` are those of this node."""
        now = time.monotonic()
        lines = self.startup.update(ranks, now)
        if not self.startup.late(ranks):
            lines += self.stragglers.update([r for r in ranks if not r.ended])
        self._report(ranks, *lines)
        found, before = find_hang(ranks, self.bound), self.hang
        if found is None and before:
            self.hang = None
            self._report(ranks, f"the ranks resumed after {now - self._since + before['seconds']:.0f} s.")
        elif found and before is None:
            self._since = now
            self._numbers += 1
            what = {"number": self._numbers, "ranks": [r.rank for r in found.behind], "step": found.step}
            self.hang = {**what, "seconds": round(found.silent), "end": False, "line": describe(found)}
            self._report(ranks)  # the other nodes write their stack traces when they read it
            stacks.write(self.run.monitor, own, self.node.place.path)
            print_line(f"{self.hang['line']} Stack traces of all ranks: {self.run.monitor}/stacks-*.txt")
        elif found and before and self.end and (own == ranks or now - self._since >= self.patience):
            self._end_run(before, found, own, ranks)

    def _end_run(
        self, known: dict[str, Any], hang: Hang, own: list[RankStatus], ranks: list[RankStatus]
    ) -> None:
        """End the run: the other nodes read it in watch.json, and the launcher stops the rest."""
        where, without = f"it hangs at step {hang.step}", " without progress"
        if hang.behind[0].section == "program":
            where, without = "its program hangs", ""
        repeated, host = stacks.is_repeated_hang(self.hangs, hang.step), _host(hang)
        why = f"{where} for the {stacks.TIMES}rd time{without}, see the stack traces" if repeated else ""
        end = f"the run failed: {why}." if why else self._describe_end()
        excluded = self._exclude_node(hang, bool(why))
        known["end"] = self._ended = True
        self.hangs = [] if why else [*self.hangs, {"step": hang.step, "start": self.start, "host": host}]
        self._report(ranks, end, *excluded)
        fields = {"ended_by": "hang", "step": hang.step} | ({"reason": why} if why else {})
        state: Literal["failed", "preempted"] = "failed" if why else "preempted"
        stacks.end_run(self.run, own, state, host if excluded else None, **fields)

    def _exclude_node(self, hang: Hang, failed: bool) -> list[str]:
        """Exclude a node whose ranks hang for the second time, and return a line for the log."""
        host = _host(hang)
        if not host or all(before.get("host") != host for before in self.hangs):
            return []
        with suppress(OSError):
            add_bad_node(self.run, host)
        if self.requeue and not failed:
            return [f"{host} has hung before; the job will be requeued without it."]
        return [f"{host} has hung before; exclude it with cluster.exclude={host}."]

    def _describe_end(self) -> str:
        if self.restart:
            return "monitor.hang=requeue: stopped the ranks, which start again if cluster.retries allows it."
        if self.requeue:
            return "monitor.hang=requeue: stopped the ranks; the job will be requeued, as after a preemption."
        again = f"python src/jobs.py resubmit {display_path(self.run.path)}"
        return f"monitor.hang=requeue: stopped the ranks; resume with: {again if self.in_job else resume_command(self.run)}"

    def _report(self, ranks: list[RankStatus], *lines: str) -> None:
        """Write watch.json, if its content has changed, then print, so that the file has the facts of each line in the log."""
        content = {
            "start": self.start,
            "late": sorted(self.startup.late(ranks)),
            "slow": [{"rank": n, "factor": round(f, 2)} for n, f in sorted(self.stragglers.factors.items())],
            "hang": self.hang,
            "hangs": self.hangs,
        }
        text = dumps(content)
        if text != self._wrote:
            with suppress(OSError):
                write_with_folder(self.file, text)
                self._wrote = text
        for line in lines:
            print_line(line)

    def _answer_debug(self, ranks: list[RankStatus]) -> None:
        """Write the stacks of this node's ranks if `jobs.py debug` has requested them."""
        asked = live.read_id(self.run.monitor / live.DEBUG)
        if asked and asked != self._asked:
            found = stacks.collect(ranks, self.node.place.path)
            # the keys of an object in JSON are strings
            answer = {"id": asked, "stacks": {str(rank): text for rank, text in found.items()}}
            with suppress(OSError):  # the command then reports that it got no answer
                live.write(self.run.monitor / f"debug-{self.node.host}.json", answer)
        self._asked = asked or self._asked

    def _follow_decision(self, ranks: list[RankStatus]) -> None:
        """Write stack traces and kill ranks, as decided on the first node at this start."""
        decision = read_json(self.file)
        hang = decision.get("hang")
        if decision.get("start") != self.start or not isinstance(hang, dict):
            return
        if hang.get("number") != self._handled:
            self._handled = hang.get("number")
            stacks.write(self.run.monitor, ranks, self.node.place.path)
        if hang.get("end") and (left := stacks.kill(ranks)):
            print_line(f"ranks {left} of {self.node.host} can't be killed: they wait for a disk or a device.")
