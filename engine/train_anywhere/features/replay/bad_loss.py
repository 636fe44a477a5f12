"""`trainer.detect_nan=replay`: steps that gave a loss of nan or inf are computed once more. What run.json records of it.

The attempt that saw the loss ends, and records in `nan` what it saw. The next one begins with a checkpoint from before, so that it
computes the same steps from the same weights and batches, and records its verdict there.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from train_anywhere.runs.folder import ATTEMPTS, RunDir

KEY = "nan"
"""Of an attempt in run.json."""

VERDICTS = ("", "machine", "repeated")


@dataclass(frozen=True)
class BadLoss:
    """A loss of nan or inf.

    Attributes:
        metric: its name.
        step: the optimizer step that first gave it, from 1.
        epoch, batch: the batch in which it did, both from 0.
        at: the step after which it was seen: metrics are read every `trainer.log_every_n_steps` steps.
        ranks: which had it in that batch.
        hosts: where they were.
        verdict: empty until the steps were computed again. machine: the loss was a number then; repeated: it was none again.
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
        """The last step after which the weights were good: with those after it the next one still gave a number."""
        return max(0, self.step - 2)

    @property
    def where(self) -> str:
        """`rank 3 on node2`, `ranks 0, 1 on node1, node2`; of many ranks the first."""
        ranks = ", ".join(map(str, self.ranks[:8])) + (" ..." if len(self.ranks) > 8 else "")
        hosts = [*dict.fromkeys(self.hosts)]
        named = f"rank{'s' if len(self.ranks) > 1 else ''} {ranks}"
        return f"{named} on {', '.join(hosts[:8])}" if hosts else named


def pending(run: RunDir) -> BadLoss | None:
    """What is to be computed again: seen by an attempt, and without a verdict. Raises CheckpointError: run.json is damaged."""
    return next((found for found in reversed(history(run.info())) if not found.verdict), None)


def history(info: Mapping[str, Any]) -> list[BadLoss]:
    """All that the attempts have seen, the oldest first; what does not fit is left out."""
    return [found for attempt in info.get(ATTEMPTS, []) if (found := read(attempt))]


def record(run: RunDir, found: BadLoss) -> None:
    """The present attempt has seen it. Only rank 0 calls it."""
    *before, newest = run.info().get(ATTEMPTS) or [{}]
    run.note(**{ATTEMPTS: [*before, {**newest, KEY: asdict(found)}]})


def judge(run: RunDir, verdict: str) -> None:
    """What was pending has its verdict. Only rank 0 calls it."""
    attempts = run.info().get(ATTEMPTS, [])
    for attempt in attempts:
        if (found := read(attempt)) and not found.verdict:
            attempt[KEY] = asdict(replace(found, verdict=verdict))
    run.note(**{ATTEMPTS: attempts})


def read(attempt: Mapping[str, Any]) -> BadLoss | None:
    """What an attempt has seen; None if nothing, or if it does not fit."""
    with suppress(KeyError, TypeError, ValueError):
        content = attempt[KEY]
        step, epoch, batch, at = (int(content[name]) for name in ("step", "epoch", "batch", "at"))
        ranks, hosts = tuple(map(int, content["ranks"])), tuple(map(str, content["hosts"]))
        verdict = content["verdict"] if content["verdict"] in VERDICTS else ""
        return BadLoss(str(content["metric"]), step, epoch, batch, at, ranks, hosts, verdict)
    return None
