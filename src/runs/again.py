"""Whether ranks that failed are started again in the same job: `python -m src.runs.again RUN --code 1 --retries 2 --used 0`.

The batch script asks after each start of the ranks that failed. Nodes that no longer answer are left out, as long as enough are left;
that uses up none of `cluster.retries`. A failure that repeats at the same step would come again for ever, so it ends the job.

Exit code 0: start again, on the nodes that are printed. 1: the job has failed. 75: too few nodes are left; it goes back to the queue.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from src.distributed.hostlist import expand_hosts
from src.errors import REFUSED, STOPPED, ProjectError
from src.runs.attempts import counted_step, logged_step, running_job
from src.runs.debug import CAUSE, named, start_of_ranks
from src.runs.folder import ATTEMPTS, RunDir, open_run

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
    """

    code: int
    step: int
    same: int
    cause: str

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
    parser = argparse.ArgumentParser(prog="python -m src.runs.again")
    parser.add_argument("run")
    for name in ("--code", "--retries", "--used"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--answer", default="")
    parser.add_argument("--fewest", type=int, default=1)
    given = parser.parse_args(words)
    used = tuple(expand_hosts(given.hosts)) if given.hosts else ()
    answering = expand_hosts(given.answer) if given.answer else []
    nodes = Nodes(used, tuple(node for node in used if node in answering), given.fewest)
    try:
        failure = read_failure(open_run(given.run), given.code)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    code, said = decide(failure, nodes, given.retries, given.used)
    print(said, file=sys.stderr, flush=True)
    if code == 0:
        print("\n".join(nodes.left))
    return code


def decide(failure: Failure, nodes: Nodes, retries: int, used: int) -> tuple[int, str]:
    """The exit code, and a sentence for the log.

    Args:
        retries: `cluster.retries`.
        used: of them, so far.
    """
    if nodes.gone:
        gone = f"{', '.join(nodes.gone)} {'does' if len(nodes.gone) == 1 else 'do'} not answer any more"
        if len(nodes.left) >= nodes.fewest:
            return 0, f"again: {gone}: the ranks start on {', '.join(nodes.left)} from the newest checkpoint."
        return (
            STOPPED,
            f"again: {gone}, and {len(nodes.left)} left are fewer than {nodes.fewest}: back to the queue.",
        )
    if failure.code == REFUSED:
        return 1, "again: not once more: the ranks refused to begin, for what is said above."
    if failure.same > 1:
        return 1, f"again: not once more: {failure.sentence}, {failure.same} times in a row."
    if used >= retries:
        return 1, f"again: not once more: {failure.sentence}; cluster.retries={retries} allows no more."
    return 0, f"again: {failure.sentence}; retry {used + 1} of {retries}, from the newest checkpoint."


def read_failure(run: RunDir, code: int) -> Failure:
    """What run.json and RUN/debug say of the newest attempt. Raises CheckpointError: run.json is damaged."""
    attempts = run.info().get(ATTEMPTS, [])
    newest = attempts[-1] if attempts else {}
    if (step := newest.get("step")) is None:
        step = max(newest.get("from_step") or 0, logged_step(run), counted_step(run))
    cause = ""
    with suppress(OSError, UnicodeDecodeError):
        cause = (run.debug / f"{start_of_ranks()}-{CAUSE}.txt").read_text().strip()
    return Failure(code, step, 1 + _before(attempts[:-1], step), cause)


def _before(attempts: Sequence[Mapping[str, Any]], step: int) -> int:
    """How many of the attempts before, in a row, failed in this job at the same step."""
    like = ((a.get("job"), a.get("ended_by") in FAILED, a.get("step")) for a in reversed(attempts))
    return len(list(takewhile(lambda one: one == (running_job(), True, step), like)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
