"""Check the ranks of all nodes, on the first node, and write RUN/monitor/watch.json.

In synchronous training all steps take as long as those of the slowest rank: the others wait for it in collective operations. So the
detection of slow ranks compares a rank's own work: waiting for data, and computing until it waits for others (see `Heartbeat.computed`).
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from statistics import median
from typing import Any

from train_anywhere.config.schema import Config
from train_anywhere.distributed.discover import hosts_by_rank
from train_anywhere.features.hangs import stacks
from train_anywhere.features.hangs.hangs import (
    Hang,
    StartupWatch,
    describe,
    find_hang,
    minority_ranks,
    ranks_by_host,
)
from train_anywhere.files.atomic import dumps, read_json, write_with_folder
from train_anywhere.monitor.ranks import NodeRanks, OtherNodes, RankStatus, short
from train_anywhere.runs.attempts import ALLOCATION, add_bad_node, running_job, start_of_job
from train_anywhere.runs.summary import display_path, resume_command

WINDOW_S, BATCHES = 10.0, 5
"""Own work is averaged over windows of 10 s, and at least 5 batches."""

RATIO, SHARE, WINDOWS = 1.3, 0.1, 3
"""A rank is slow if its own work takes 1.3 times the median of the others, and the difference is at least a tenth of the step, in 3
windows in a row: a short disturbance or a smaller share is not worth a message."""

CHANGE = 1.3
"""A slow rank is reported again if its factor changes by this ratio."""


class Stragglers:
    """Detects slow ranks from one update to the next.

    Args:
        window: seconds over which own work is averaged.

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
        pairs = [(self._from[n], r) for n, r in now.items() if n in self._from]
        same = self._from.keys() == now.keys()
        if same and any(b.clock - a.clock < self.window or b.trained - a.trained < BATCHES for a, b in pairs):
            return []
        self._from = now
        own = sorted((b.own - a.own) / (b.trained - a.trained) for a, b in pairs) if same else []
        if len(own) < 2:
            return []
        # for a rank above the median of all, this is the median of the others
        middle, usual = median(own), median(own[:-1])
        return [line for a, b in pairs if (line := self._check(a, b, middle, usual))]

    def _check(self, before: RankStatus, after: RankStatus, middle: float, usual: float) -> str | None:
        number, batches = after.rank, after.trained - before.trained
        own = (after.own - before.own) / batches
        factor = own / usual if own > middle and usual > 0 else 1.0
        slow = factor >= RATIO and own - usual >= SHARE * (after.clock - before.clock) / batches
        rows = self._rows[number] = [*self._rows.get(number, []), factor][-WINDOWS:] if slow else []
        if not slow and number in self._reported and factor < (1 + RATIO) / 2:
            del self._reported[number], self.factors[number]
            return f"{ranks_by_host([after])} is as fast as the others again."
        if len(rows) < WINDOWS:
            return None
        self.factors[number] = found = median(rows)
        if 1 / CHANGE < found / self._reported.get(number, 1e9) < CHANGE:
            return None
        self._reported[number] = found
        data = (after.data - before.data) / batches
        of_data = f", of which {1000 * data:.1f} ms wait for data" if data > own / 2 else ""
        return (
            f"{ranks_by_host([after])} is slow: its own work takes {found:.1f} times as long as that of the others "
            f"({1000 * own:.1f} ms a batch{of_data}; median of the others {1000 * usual:.1f} ms), and all ranks wait for it."
        )


FILE = "watch.json"

STACKS_S = 4.0
"""Seconds for another node to write its stack traces, once it has read of the hang."""


class HangDetector:
    """Detects missing, slow and hanging ranks, and decides what the nodes do about a hang.

    Args:
        every: seconds between two writes of a node.

    Attributes:
        bound: seconds of silence that always count as a hang.
        end: whether a hang ends the run.
        requeue: whether its job is then requeued.
        restart: whether the job may restart the ranks before.
    """

    def __init__(self, node: NodeRanks, config: Config, every: float, environ: Mapping[str, str]) -> None:
        monitor, cluster, job = config.monitor, config.cluster, environ.get("SLURM_JOB_ID")
        expected = hosts_by_rank(environ.get("TRAIN_HOSTS", ""))
        self.node, self.run = node, node.run
        self.startup = StartupWatch(expected, unwatched=unwatched_ranks(expected, node.host, environ))
        self.start, self.in_job = start_of_job(environ), running_job(environ) is not None
        self.bound, self.end = 60 * (monitor.hang_minutes or 0.0), monitor.hang == "requeue"
        self.requeue = cluster.requeue and job not in (None, environ.get(ALLOCATION))
        self.restart = cluster.retries > 0 and self.in_job
        self.file = self.run.monitor / FILE
        self.others = OtherNodes(self.run, node.host, every)
        self.patience = 2 * every + STACKS_S
        self.stragglers = Stragglers()
        before = read_json(self.file).get("hangs")
        hangs = before if isinstance(before, list) else []
        self.hangs = [h for h in hangs if isinstance(h, dict) and isinstance(h.get("step"), int)]
        self.hang: dict[str, Any] | None = None
        self._numbers = 0
        self._since = 0.0
        self._ended = False
        self._wrote: Any = None

    def update(self, own: list[RankStatus]) -> None:
        """Check all ranks now. `own` are the ranks of this node."""
        if self._ended:  # kill ranks again that could not be killed before
            stacks.kill(own)
            return
        ranks = own + self.others.read()
        lines = self.startup.update(ranks, time.monotonic())
        if not self.startup.late(ranks):
            lines += self.stragglers.update([r for r in ranks if not r.ended])
        self._report(ranks, *lines)
        self._look_for_hang(own, ranks)

    def _look_for_hang(self, own: list[RankStatus], ranks: list[RankStatus]) -> None:
        found = find_hang(ranks, self.bound)
        now = time.monotonic()
        if found is None:
            before, self.hang = self.hang, None
            if before:
                silent = now - self._since + before["seconds"]
                self._report(ranks, f"the ranks resumed after {silent:.0f} s.")
        elif self.hang is None:
            self._since = now
            self._report_hang(found, own, ranks)
        elif self.end and (own == ranks or now - self._since >= self.patience):
            self._end_run(found, own, ranks)

    def _report_hang(self, hang: Hang, own: list[RankStatus], ranks: list[RankStatus]) -> None:
        """Report the hang, and make all nodes write stack traces."""
        self._numbers += 1
        self.hang = {
            "number": self._numbers,
            "ranks": list(hang.numbers),
            "step": hang.step,
            "seconds": round(hang.silent),
            "end": False,
        }
        self._write(ranks)  # the other nodes start when they read it
        collected = stacks.collect(own, self.node.place.path)
        stacks.write(self.run.monitor, own, collected)
        tops = {n: stacks.top(text) for n, text in collected.items()}
        minority = minority_ranks(tops) if own == ranks else []
        self.hang["line"] = line = describe(hang, minority)
        self._report(ranks, f"{line} Stack traces of all ranks: {self.run.monitor}/stacks-*.txt")

    def _end_run(self, hang: Hang, own: list[RankStatus], ranks: list[RankStatus]) -> None:
        """End the run: the other nodes read it in watch.json, and the launcher stops the rest."""
        assert self.hang
        of_program = hang.behind[0].section == "program"
        where, without = (
            ("its program hangs", "")
            if of_program
            else (f"it hangs at step {hang.step}", " without progress")
        )
        why = f"{where} for the {stacks.TIMES}rd time{without}, see the stack traces"
        why = why if stacks.is_repeated_hang(self.hangs, hang.step) else ""
        end = f"the run failed: {why}." if why else self._describe_end()
        excluded = self._exclude_node(hang, bool(why))
        self.hang["end"] = self._ended = True
        found = {"step": hang.step, "start": self.start, "host": _host(hang)}
        self.hangs = [] if why else [*self.hangs, found]
        self._report(ranks, end, *excluded)
        fields = {"ended_by": "hang", "step": hang.step} | ({"reason": why} if why else {})
        node = _host(hang) if excluded else None
        stacks.end_run(self.run, own, "failed" if why else "preempted", node, **fields)

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
        """Write watch.json, then print, so that the file has the facts of each line in the log."""
        self._write(ranks)
        for line in lines:
            print_line(line)

    def _write(self, ranks: list[RankStatus]) -> None:
        """Write watch.json, for `jobs.py` and the other nodes, if its content has changed."""
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


def unwatched_ranks(expected: Mapping[int, str], host: str, environ: Mapping[str, str]) -> set[int]:
    """Return ranks on nodes without a monitor process: on PBS only the first node has one."""
    if environ.get("SLURM_JOB_ID") or not environ.get("PBS_JOBID"):
        return set()
    return {rank for rank, where in expected.items() if short(where) != short(host)}


def _host(hang: Hang) -> str | None:
    """Return the node that blocks the others, if it is a single one."""
    behind, waiting = {r.host for r in hang.behind}, {r.host for r in hang.waiting}
    return behind.pop() if len(behind) == 1 and waiting - behind else None


def print_line(line: str) -> None:
    """Print a line in the job's log."""
    print(f"watch: {line}", flush=True)
