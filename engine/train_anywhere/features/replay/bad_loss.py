"""`trainer.detect_nan=replay`: the record in run.json of a loss of nan or inf whose steps are recomputed.

The attempt with the loss records it under `nan` and ends. The next attempt starts from an earlier checkpoint, so it computes the same
steps from the same weights and batches, and records its verdict there.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from train_anywhere.runs.folder import ATTEMPTS, RunDir

KEY = "nan"
"""Key of an attempt in run.json."""

VERDICTS = ("", "machine", "repeated")


@dataclass(frozen=True)
class BadLoss:
    """A loss of nan or inf.

    Attributes:
        metric: name of the loss.
        step: the first optimizer step with this loss, from 1.
        epoch, batch: the epoch and batch of that step, both from 0.
        at: the step at which it was detected: metrics are read every `trainer.log_every_n_steps` steps.
        ranks: the ranks with this loss in that batch.
        hosts: the node of each of these ranks.
        verdict: empty until the steps are recomputed; machine: the loss was finite then; repeated: it was not finite again.
    """

    metric: str
    step: int
    epoch: int
    batch: int
    at: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    verdict: str = ""

    @property
    def until(self) -> int:
        """The last step with good weights: the following step still gave a finite loss."""
        return max(0, self.step - 2)

    @property
    def ranks_and_hosts(self) -> str:
        """For example `rank 3 on node2` or `ranks 0, 1 on node1, node2`; the first 8 of many."""
        ranks = ", ".join(map(str, self.ranks[:8])) + (" ..." if len(self.ranks) > 8 else "")
        hosts = [*dict.fromkeys(self.hosts)]
        names = f"rank{'s' if len(self.ranks) > 1 else ''} {ranks}"
        return f"{names} on {', '.join(hosts[:8])}" if hosts else names


def pending(run: RunDir) -> BadLoss | None:
    """Return the newest recorded loss without a verdict, which is to be recomputed. Raises CheckpointError: run.json is damaged."""
    return next((found for found in reversed(history(run.read_info())) if not found.verdict), None)


def history(info: Mapping[str, Any]) -> list[BadLoss]:
    """Return the losses of all attempts, oldest first; invalid records are left out."""
    return [found for attempt in info.get(ATTEMPTS, []) if (found := read(attempt))]


def record(run: RunDir, found: BadLoss) -> None:
    """Record a loss in the current attempt; called by rank 0 only."""
    *before, newest = run.read_info().get(ATTEMPTS) or [{}]
    run.update_or_defer(**{ATTEMPTS: [*before, {**newest, KEY: asdict(found)}]})


def record_verdict(run: RunDir, verdict: str) -> None:
    """Record the verdict on all losses without one; called by rank 0 only."""
    attempts = run.read_info().get(ATTEMPTS, [])
    for attempt in attempts:
        if (found := read(attempt)) and not found.verdict:
            attempt[KEY] = asdict(replace(found, verdict=verdict))
    run.update_or_defer(**{ATTEMPTS: attempts})


def read(attempt: Mapping[str, Any]) -> BadLoss | None:
    """Return the loss recorded in an attempt; None if there is none, or the record is invalid."""
    with suppress(KeyError, TypeError, ValueError):
        content = attempt[KEY]
        step, epoch, batch, at = (int(content[name]) for name in ("step", "epoch", "batch", "at"))
        ranks, hosts = tuple(map(int, content["ranks"])), tuple(map(str, content["hosts"]))
        verdict = content["verdict"] if content["verdict"] in VERDICTS else ""
        return BadLoss(str(content["metric"]), step, epoch, batch, at, ranks, hosts, verdict)
    return None
