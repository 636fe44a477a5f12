"""Decide whether a job restarts its ranks after a failure.

    python -m train_anywhere.features.restarts.restart RUN --code 1 --retries 2 --used 0

The batch script calls this each time the ranks fail. Nodes that no longer answer are left out if enough others remain; this does not
count as one of `cluster.retries`. A failure that repeats at the same step would repeat for ever, so it ends the job. A node on which the
first rank failed twice, at different steps, is bad: the job continues, or is requeued, without it. The steps of a program
(src/run.py) are not known: its failures use up `cluster.retries`.

Exit codes: 0: restart on the printed nodes. 1: the job has failed. 75: too few nodes are left, or a bad node must go; requeue the job.
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
from train_anywhere.files.atomic import read_text
from train_anywhere.runs.attempts import read_logged_step, read_recorded_step, running_job
from train_anywhere.runs.debug import CAUSE, NODE, describe_exit_code, launch_id, read_claim
from train_anywhere.runs.folder import ATTEMPTS, RunDir, open_run
from train_anywhere.runs.summary import is_program

FAILED = ("failed", "killed")
"""Values of `ended_by` of attempts that may be restarted."""


@dataclass(frozen=True)
class Failure:
    """A failure of the ranks.

    Attributes:
        code: exit code of the launcher.
        step: optimizer steps done.
        same: consecutive failures of this job's ranks at this step.
        cause: message of the first rank to fail; empty if it was killed.
        node: node of the first rank to fail, if it also failed there before, at another step; else empty.
        program: whether a program failed, which has no steps and may exit with any code.
    """

    code: int
    step: int
    same: int
    cause: str
    node: str = ""
    program: bool = False

    @property
    def sentence(self) -> str:
        """The failure in words."""
        if self.program:
            return self.cause or f"the program ended with {describe_exit_code(self.code)}"
        return f"the ranks failed after step {self.step}: {self.cause or describe_exit_code(self.code)}"


@dataclass(frozen=True)
class Nodes:
    """Nodes of an elastic job.

    Attributes:
        used: nodes on which the ranks ran.
        left: those of them that answer.
        fewest: number of nodes that the job needs at least.
    """

    used: tuple[str, ...]
    left: tuple[str, ...]
    fewest: int

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Nodes that don't answer."""
        return tuple(node for node in self.used if node not in self.left)


def main(words: Sequence[str]) -> int:
    """Print the nodes to continue on, and the reason to stderr; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train_anywhere.features.restarts.restart")
    parser.add_argument("run")
    for name in ("--code", "--retries", "--used"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--answer", default="")
    parser.add_argument("--fewest", type=int, default=1)
    parser.add_argument("--requeue", action="store_true")
    args = parser.parse_args(words)
    used = tuple(expand_hosts(args.hosts)) if args.hosts else ()
    answering = expand_hosts(args.answer) if args.answer else []
    nodes = Nodes(used, tuple(node for node in used if node in answering), args.fewest)
    try:
        run = open_run(args.run)
        failure = read_failure(run, args.code)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    decision = decide(failure, nodes, args.retries, args.used, args.requeue)
    print(f"again: {decision.reason}", file=sys.stderr, flush=True)
    if decision.without:
        with suppress(OSError):
            nodes_file.add(run, decision.without)
    if decision.code == 0:
        print("\n".join(node for node in nodes.left if short(node) != decision.without))
    return decision.code


@dataclass(frozen=True)
class Decision:
    """What the batch script has to do.

    Attributes:
        code: the exit code, see the module.
        reason: a sentence for the log.
        without: a node to exclude; empty if there is none.
    """

    code: int
    reason: str
    without: str = ""


def decide(failure: Failure, nodes: Nodes, retries: int, used: int, requeue: bool) -> Decision:
    """Decide whether to restart the ranks.

    Args:
        failure: the failure.
        nodes: nodes of an elastic job.
        retries: `cluster.retries`.
        used: retries used so far.
        requeue: whether the job can be requeued.
    """
    if nodes.unreachable:
        verb = "does" if len(nodes.unreachable) == 1 else "do"
        gone = f"{', '.join(nodes.unreachable)} {verb} not answer any more"
        if len(nodes.left) >= nodes.fewest:
            names = ", ".join(nodes.left)
            return Decision(0, f"{gone}: the ranks start on {names} from the newest checkpoint.")
        fewer = f"{len(nodes.left)} left are fewer than {nodes.fewest}"
        return Decision(STOPPED, f"{gone}, and {fewer}: requeueing the job.")
    if failure.code == REFUSED and not (failure.program and failure.cause):
        return Decision(1, "not restarted: the ranks refused to start (see above).")
    if failure.same > 1:
        return Decision(1, f"not restarted: {failure.sentence}, {failure.same} times in a row.")
    if failure.node and any(short(node) == failure.node for node in nodes.left):
        left = [node for node in nodes.left if short(node) != failure.node]
        if len(left) >= nodes.fewest:
            reason = f"{failure.sentence}; not the first time on {failure.node}: the ranks start on {', '.join(left)}."
            return Decision(0, reason, failure.node)
    if used < retries:
        again = "" if failure.program else ", from the newest checkpoint"
        return Decision(0, f"{failure.sentence}; retry {used + 1} of {retries}{again}.")
    if failure.node and requeue:
        reason = f"{failure.sentence}; not the first time on {failure.node}: requeueing the job without it."
        return Decision(STOPPED, reason, failure.node)
    return Decision(1, f"not restarted: {failure.sentence}; cluster.retries={retries} allows no more.")


def read_failure(run: RunDir, code: int) -> Failure:
    """Return the failure of the newest attempt, from run.json and RUN/debug. Raises CheckpointError: run.json is damaged."""
    attempts = run.read_info().get(ATTEMPTS, [])
    newest = attempts[-1] if attempts else {}
    if (step := newest.get("step")) is None:
        step = max(newest.get("from_step") or 0, read_logged_step(run), read_recorded_step(run))
    cause = read_claim(run, CAUSE)
    if is_program(run):
        return Failure(code, step, 1, cause, program=True)
    same = 1 + _earlier_failures(attempts[:-1], step)
    return Failure(code, step, same, cause, _bad_node(run))


def _bad_node(run: RunDir) -> str:
    """Return the node of the first rank to fail, if another start of this job failed there too; else empty."""
    own, nodes = f"{launch_id()}-{NODE}.txt", dict[str, str]()
    for file in run.debug.glob(f"{running_job()}-*-{NODE}.txt"):
        with suppress(OSError, UnicodeDecodeError):
            nodes[file.name] = read_text(file).strip()
    node = nodes.pop(own, "")
    return short(node) if node in nodes.values() else ""


def short(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


def _earlier_failures(attempts: Sequence[Mapping[str, Any]], step: int) -> int:
    """Return the number of latest attempts in a row that failed in this job at the same step."""
    like = ((a.get("job"), a.get("ended_by") in FAILED, a.get("step")) for a in reversed(attempts))
    return len(list(takewhile(lambda one: one == (running_job(), True, step), like)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
