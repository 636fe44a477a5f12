"""What the first node's watch finds in the ranks of all nodes: said in the log once, and kept in RUN/monitor/watch.json."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from train_anywhere.features.bad_nodes import nodes_file
from train_anywhere.features.hangs import kill_ranks, stacks
from train_anywhere.features.hangs.hangs import Hang, describe, elsewhere, find_hang
from train_anywhere.features.hangs.startup import Meeting
from train_anywhere.features.hangs.stragglers import Stragglers
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.plain_json import dumps
from train_anywhere.monitor.ranks import NodeRanks, OtherNodes, Seen, read_json
from train_anywhere.runs.attempts import running_job

FILE = "watch.json"

STACKS_S = 4.0
"""Time for another node to write its stacks, once it knows of the hang."""


class Judge:
    """Looks at all ranks.

    Args:
        node: this node, the first one.
        meeting: follows the start.
        bound: seconds of silence that are a hang in any case.
        every: seconds between two messages of a node.
        requeue: a hang ends the run, so that its job comes back.
    """

    def __init__(
        self,
        node: NodeRanks,
        meeting: Meeting,
        bound: float,
        every: float,
        requeue: bool,
        environ: Mapping[str, str],
    ) -> None:
        self.node, self.run, self.meeting = node, node.run, meeting
        self.bound, self.requeue = bound, requeue
        self.start = kill_ranks.start_of_job(environ)
        self.batch = bool(running_job(environ))
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

    def look(self, own: list[Seen]) -> None:
        """Judge now; `own` are the ranks of this node."""
        if self._ended:
            kill_ranks.kill(own)
            return
        ranks = own + self.others.look()
        lines = self.meeting.look(ranks, time.monotonic())
        if not self.meeting.late(ranks):
            lines += self.stragglers.look([r for r in ranks if not r.ended])
        self._report(ranks, *lines)
        self._look_for_hang(own, ranks)

    def _look_for_hang(self, own: list[Seen], ranks: list[Seen]) -> None:
        found = find_hang(ranks, self.bound)
        now = time.monotonic()
        if found is None:
            before, self.hang = self.hang, None
            if before:
                silent = now - self._since + before["seconds"]
                self._report(ranks, f"the ranks go on again, after {silent:.0f} s.")
        elif self.hang is None:
            self._since = now
            self._found(found, own, ranks)
        elif self.requeue and (own == ranks or now - self._since >= self.patience):
            self._end(found, own, ranks)

    def _found(self, hang: Hang, own: list[Seen], ranks: list[Seen]) -> None:
        """Say it, and let all nodes write stacks."""
        self._numbers += 1
        self.hang = {
            "number": self._numbers,
            "ranks": list(hang.numbers),
            "step": hang.step,
            "seconds": round(hang.silent),
            "end": False,
        }
        self._write(ranks)  # the other nodes may begin
        collected = stacks.collect(own, self.node.place.path)
        stacks.write(self.run.monitor, own, collected)
        minority = elsewhere({n: stacks.top(text) for n, text in collected.items()}) if own == ranks else []
        self.hang["line"] = line = describe(hang, minority)
        self._report(ranks, f"{line} Stacks of all ranks: {self.run.monitor}/stacks-*.txt")

    def _end(self, hang: Hang, own: list[Seen], ranks: list[Seen]) -> None:
        """End the run: the other nodes read it in watch.json, and the launcher ends what is left."""
        assert self.hang
        failed = kill_ranks.too_often(self.hangs, hang.step)
        lines = [self._sentence(hang.step, failed), *self._blame(hang)]
        self.hang["end"] = self._ended = True
        found = {"step": hang.step, "start": self.start, "host": _host(hang)}
        self.hangs = [] if failed else [*self.hangs, found]
        self._report(ranks, *lines)
        kill_ranks.end_run(self.run, own, hang.step, failed)

    def _blame(self, hang: Hang) -> list[str]:
        """A node on which ranks hang for the second time, while others wait, is bad; returns the line for the log, if any."""
        host = _host(hang)
        if not host or all(before.get("host") != host for before in self.hangs):
            return []
        with suppress(OSError):
            nodes_file.add(self.run, host)
        return [f"it is not the first time on {host}: the job comes back without that node."]

    def _sentence(self, step: int, failed: bool) -> str:
        if failed:
            return f"the run hangs at step {step} for the {kill_ranks.TIMES}rd time without progress since: it has failed, see the stacks."
        if self.batch:
            return "monitor.hang=requeue: the ranks are ended, and the job comes back as after a preemption."
        return f"monitor.hang=requeue: the ranks are ended; go on with: python src/train.py resume={self.run.path}"

    def _report(self, ranks: list[Seen], *lines: str) -> None:
        """Write watch.json, then print: whoever reads a line in the log finds its facts in the file."""
        self._write(ranks)
        for line in lines:
            say(line)

    def _write(self, ranks: list[Seen]) -> None:
        """What is found now, for people, `jobs.py` and the other nodes; written when it changes."""
        content = {
            "start": self.start,
            "late": sorted(self.meeting.late(ranks)),
            "slow": [{"rank": n, "factor": round(f, 2)} for n, f in sorted(self.stragglers.factors.items())],
            "hang": self.hang,
            "hangs": self.hangs,
        }
        text = dumps(content)
        if text != self._wrote:
            with suppress(OSError):
                make_folder(self.run.monitor)
                write_atomic(self.file, text)
                self._wrote = text


def _host(hang: Hang) -> str | None:
    """The node that holds the others up; None if it is not one."""
    behind, waiting = {r.host for r in hang.behind}, {r.host for r in hang.waiting}
    return behind.pop() if len(behind) == 1 and waiting - behind else None


def say(line: str) -> None:
    """One line in the log of the job."""
    print(f"watch: {line}", flush=True)
