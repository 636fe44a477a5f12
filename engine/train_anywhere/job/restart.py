"""Decide whether the ranks start again after a failure.

Nodes that no longer answer are left out if enough others remain; this does not count as one of `cluster.retries`. A failure that repeats
at the same step would repeat for ever, so it ends the job, and so do three starts without a new step. A node on which the first rank
failed twice, at different steps, is bad: the job continues, or is requeued, without it. The steps of a program (src/run.py) are not
known: its failures use up `cluster.retries`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from train_anywhere.errors import REFUSED, STOPPED, listed
from train_anywhere.files.atomic import read_text, try_read
from train_anywhere.monitor.ranks import short
from train_anywhere.runs.attempts import (
    KILLED,
    NODE,
    describe_exit_code,
    launch_id,
    read_logged_step,
    read_recorded_step,
    running_job,
)
from train_anywhere.runs.folder import ATTEMPTS, RunDir

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
        hung: whether the monitor has killed the ranks because they hung; `node` is then one that hung for the second time.
    """

    code: int
    step: int
    same: int
    cause: str
    node: str = ""
    program: bool = False
    hung: bool = False

    @property
    def sentence(self) -> str:
        """The failure in words."""
        if self.hung:
            return "the program hung" if self.program else f"the ranks hung after step {self.step}"
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
        counts: the only numbers of nodes on which the ranks may start; empty: any other, too.
    """

    used: tuple[str, ...]
    left: tuple[str, ...]
    fewest: int
    counts: tuple[int, ...] = ()

    def choose(self, left: Sequence[str]) -> tuple[str, ...]:
        """Return as many of these nodes as the ranks may use; none if they are too few."""
        fitting = [n for n in self.counts or range(self.fewest, len(left) + 1) if n <= len(left)]
        return tuple(left[: max(fitting, default=0)])

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Nodes that don't answer."""
        return tuple(node for node in self.used if node not in self.left)


@dataclass(frozen=True)
class Decision:
    """A decision after a failure.

    Attributes:
        code: 0: the ranks start again; 1: the run has failed; `STOPPED`: the job must be requeued.
        without: a node to exclude; empty if there is none.
    """

    code: int
    reason: str
    without: str = ""


def decide(
    failure: Failure, nodes: Nodes, retries: int, used: int, requeue: bool, stuck: int = 0
) -> Decision:
    """Decide whether to restart the ranks.

    `used` is the number of retries so far, and `stuck` that of starts in a row without a new step, 0 if they are too few to end the job.
    """
    spent = f"cluster.retries={retries} allows no more"
    if stuck:
        return Decision(1, f"not restarted: {failure.sentence}; {stuck} starts in a row made no new step.")
    if nodes.unreachable:
        verb = "does" if len(nodes.unreachable) == 1 else "do"
        gone = f"{listed(nodes.unreachable)} {verb} not answer any more"
        if chosen := nodes.choose(nodes.left):
            return Decision(0, f"{gone}: the ranks start on {listed(chosen)} from the newest checkpoint.")
        fewer = f"{len(nodes.left)} left are fewer than {nodes.fewest}"
        return Decision(STOPPED, f"{gone}, and {fewer}: requeueing the job.")
    if failure.code == REFUSED and not (failure.program and failure.cause):
        return Decision(1, "not restarted: the ranks refused to start (see above).")
    if failure.same > 1:
        return Decision(1, f"not restarted: {failure.sentence}, {failure.same} times in a row.")
    if failure.node and any(short(node) == failure.node for node in nodes.left):
        left = [node for node in nodes.left if short(node) != failure.node]
        if chosen := nodes.choose(left):
            reason = f"{failure.sentence}; not the first time on {failure.node}: the ranks start on {listed(chosen)}."
            return Decision(0, reason, failure.node)
    if failure.hung and (failure.node or used >= retries):
        why = f"not the first time on {failure.node}" if failure.node else spent
        then = "requeueing the job" if requeue else "ending the job"
        return Decision(STOPPED, f"{failure.sentence}; {why}: {then}.", failure.node)
    if used < retries:
        again = "" if failure.program else ", from the newest checkpoint"
        return Decision(0, f"{failure.sentence}; retry {used + 1} of {retries}{again}.")
    if failure.node and requeue:
        reason = f"{failure.sentence}; not the first time on {failure.node}: requeueing the job without it."
        return Decision(STOPPED, reason, failure.node)
    return Decision(1, f"not restarted: {failure.sentence}; {spent}.")


def read_failure(
    run: RunDir, code: int, program: bool, cause: str, environ: Mapping[str, str], hung: bool = False
) -> Failure:
    """Return the failure of the newest attempt. Raises CheckpointError if run.json is damaged."""
    attempts = run.read_info().get(ATTEMPTS, [])
    newest = attempts[-1] if attempts else {}
    if (step := newest.get("step")) is None:
        step = max(newest.get("from_step") or 0, read_logged_step(run), read_recorded_step(run))
        with suppress(OSError, ValueError):  # a killed rank 0 has recorded nothing for some seconds
            step = max(step, int(read_text(run.checkpoints / "newest")))
    cause = cause or (newest.get("reason") or "" if newest.get("ended_by") == "failed" else "")
    if hung:
        twice = try_read(run.monitor / KILLED).split()[1:2]
        return Failure(code, step, 1, "", "".join(map(short, twice)), program, hung=True)
    if program:
        return Failure(code, step, 1, cause, program=True)
    # the latest attempts in a row that failed in this job at the same step
    like = ((a.get("job"), a.get("ended_by") in FAILED, a.get("step")) for a in reversed(attempts[:-1]))
    same = 1 + len(list(takewhile(lambda one: one == (running_job(), True, step), like)))
    # the node of the first rank to fail, if another start of this job failed there too
    files = run.debug.glob(f"{running_job()}-*-{NODE}.txt")
    nodes = {file.name: try_read(file).strip() for file in files}
    node = nodes.pop(f"{launch_id(environ)}-{NODE}.txt", "")
    return Failure(code, step, same, cause, short(node) if node in nodes.values() else "")
