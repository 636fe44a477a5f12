"""Decide whether a job starts its ranks again after a failure.

    python -m train_anywhere.features.restarts.restart RUN --code 1 --retries 2 --used 0

The batch script asks after each start of the ranks that failed. Nodes that no longer answer are left out, as long as enough are left;
that uses up none of `cluster.retries`. A failure that repeats at the same step would come again for ever, so it ends the job. A node
on which the first rank failed twice, at different steps, is bad: the job goes on, or comes back, without it.

Exit code 0: start again, on the nodes that are printed. 1: the job has failed. 75: too few nodes are left; it goes back to the queue.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from train_anywhere.distributed.network.hostlist import expand_hosts
from train_anywhere.errors import REFUSED, STOPPED, ProjectError
from train_anywhere.features.bad_nodes import nodes_file
from train_anywhere.features.replay.bad_loss import BadLoss, read
from train_anywhere.files.atomic import read_text
from train_anywhere.runs.attempts import counted_step, logged_step, running_job
from train_anywhere.runs.debug import CAUSE, NODE, named, start_of_ranks
from train_anywhere.runs.folder import ATTEMPTS, RunDir, open_run

FAILED = ("failed", "killed")
"""How attempts end that may be started again."""


@dataclass(frozen=True)
class Failure:
    """Ranks that failed.

    Attributes:
        code: of the launcher.
        step: optimizer steps done.
        same: how often in a row the ranks of this job have failed with so many.
        cause: what the first rank to fail said of itself; empty if it was killed.
        loss: of nan or inf, that ended it with `trainer.detect_nan=replay`.
        node: that has failed before too, after another number of steps; empty if there is none.
    """

    code: int
    step: int
    same: int
    cause: str
    loss: BadLoss | None = None
    node: str = ""

    @property
    def sentence(self) -> str:
        """What happened."""
        return f"the ranks failed after step {self.step}: {self.cause or named(self.code)}"


@dataclass(frozen=True)
class Nodes:
    """Of an elastic job.

    Attributes:
        used: on which the ranks ran.
        left: those of them that answer.
        fewest: that the job can go on with.
    """

    used: tuple[str, ...]
    left: tuple[str, ...]
    fewest: int

    @property
    def gone(self) -> tuple[str, ...]:
        """Those that don't answer."""
        return tuple(node for node in self.used if node not in self.left)


def main(words: Sequence[str]) -> int:
    """Print the nodes to go on with, and to the log why; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train_anywhere.features.restarts.restart")
    parser.add_argument("run")
    for name in ("--code", "--retries", "--used"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--answer", default="")
    parser.add_argument("--fewest", type=int, default=1)
    parser.add_argument("--requeue", action="store_true")
    given = parser.parse_args(words)
    used = tuple(expand_hosts(given.hosts)) if given.hosts else ()
    answering = expand_hosts(given.answer) if given.answer else []
    nodes = Nodes(used, tuple(node for node in used if node in answering), given.fewest)
    try:
        run = open_run(given.run)
        failure = read_failure(run, given.code)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    decision = decide(failure, nodes, given.retries, given.used, given.requeue)
    print(f"again: {decision.said}", file=sys.stderr, flush=True)
    if decision.without:
        with suppress(OSError):
            nodes_file.add(run, decision.without)
    if decision.code == 0:
        print("\n".join(node for node in nodes.left if short(node) != decision.without))
    return decision.code


@dataclass(frozen=True)
class Decision:
    """What the batch script does.

    Attributes:
        code: its exit code, see the module.
        said: a sentence for the log.
        without: a node that the job goes on without; empty if there is none.
    """

    code: int
    said: str
    without: str = ""


def decide(failure: Failure, nodes: Nodes, retries: int, used: int, requeue: bool) -> Decision:
    """Decide it.

    Args:
        retries: `cluster.retries`.
        used: of them, so far.
        requeue: the job can go back to the queue.
    """
    if nodes.gone:
        gone = f"{', '.join(nodes.gone)} {'does' if len(nodes.gone) == 1 else 'do'} not answer any more"
        if len(nodes.left) >= nodes.fewest:
            return Decision(
                0, f"{gone}: the ranks start on {', '.join(nodes.left)} from the newest checkpoint."
            )
        fewer = f"{len(nodes.left)} left are fewer than {nodes.fewest}"
        return Decision(STOPPED, f"{gone}, and {fewer}: back to the queue.")
    if failure.code == REFUSED:
        return Decision(1, "not once more: the ranks refused to begin, for what is said above.")
    if failure.loss and failure.loss.verdict == "repeated":
        return Decision(1, f"not once more: {failure.loss.metric} is nan or inf each time.")
    if failure.loss:
        return Decision(0, f"the steps up to {failure.loss.at} are computed again, from a checkpoint before.")
    if failure.same > 1:
        return Decision(1, f"not once more: {failure.sentence}, {failure.same} times in a row.")
    if failure.node and any(short(node) == failure.node for node in nodes.left):
        left = [node for node in nodes.left if short(node) != failure.node]
        if len(left) >= nodes.fewest:
            said = f"{failure.sentence}; not the first time on {failure.node}: the ranks start on {', '.join(left)}."
            return Decision(0, said, failure.node)
    if used < retries:
        said = f"{failure.sentence}; retry {used + 1} of {retries}, from the newest checkpoint."
        return Decision(0, said)
    if failure.node and requeue:
        said = (
            f"{failure.sentence}; not the first time on {failure.node}: back to the queue, without that node."
        )
        return Decision(STOPPED, said, failure.node)
    return Decision(1, f"not once more: {failure.sentence}; cluster.retries={retries} allows no more.")


def read_failure(run: RunDir, code: int) -> Failure:
    """What run.json and RUN/debug say of the newest attempt. Raises CheckpointError: run.json is damaged."""
    attempts = run.info().get(ATTEMPTS, [])
    newest = attempts[-1] if attempts else {}
    if (step := newest.get("step")) is None:
        step = max(newest.get("from_step") or 0, logged_step(run), counted_step(run))
    cause = ""
    with suppress(OSError, UnicodeDecodeError):
        cause = read_text(run.debug / f"{start_of_ranks()}-{CAUSE}.txt").strip()
    return Failure(code, step, 1 + _before(attempts[:-1], step), cause, read(newest), _bad_node(run))


def _bad_node(run: RunDir) -> str:
    """The node of the first rank to fail now, if that of another start of this job was on it too."""
    own, named = f"{start_of_ranks()}-{NODE}.txt", dict[str, str]()
    for file in run.debug.glob(f"{running_job()}-*-{NODE}.txt"):
        with suppress(OSError, UnicodeDecodeError):
            named[file.name] = read_text(file).strip()
    node = named.pop(own, "")
    return short(node) if node in named.values() else ""


def short(host: str) -> str:
    """A host's name without its domain."""
    return host.partition(".")[0]


def _before(attempts: Sequence[Mapping[str, Any]], step: int) -> int:
    """How many of the attempts before, in a row, failed in this job at the same step."""
    like = ((a.get("job"), a.get("ended_by") in FAILED, a.get("step")) for a in reversed(attempts))
    return len(list(takewhile(lambda one: one == (running_job(), True, step), like)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
