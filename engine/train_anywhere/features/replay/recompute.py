"""`trainer.detect_nan=replay`: was it the machine? A loss of nan or inf is computed again, from the same weights and batches.

Each rank counts on its device how many batches gave numbers since the metrics were read last, which is one small operation a
batch. Where a loss is none, the ranks tell each other which batch was the first and whose, and end. Whoever has started them does
so again (`features/restarts/restart.py` in a job), from a checkpoint of before. The same again is the fault of the model or the
data, and the batch is kept; a number instead is the fault of the machine: a defective device computes something else each time. NVIDIA's
Megatron-LM tells the two apart in the same way (megatron/core/rerun_state_machine.py).
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from train_anywhere.distributed.launcher_env import places
from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.errors import CheckpointError, DataError, NotFiniteError
from train_anywhere.features.bad_nodes import nodes_file
from train_anywhere.features.feature import Observer, Step
from train_anywhere.features.replay import bad_loss
from train_anywhere.features.replay.bad_loss import BadLoss
from train_anywhere.files.ordinary import make_folder
from train_anywhere.runs.attempts import hosts
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import NAN_ADVICE as ADVICE
from train_anywhere.runs.summary import display_path, not_finite

Counted = tuple[int, int]
"""Batches since the metrics were read last, and how many of them came before the first without a number."""

Total = Callable[[list[float]], list[float]]
"""Sums over the ranks."""

Keep = Callable[[int, int, int, Path], list[int]]
"""(epoch, batch, rank, file): read what that rank has in that batch, and write it to the file; returns the numbers of its rows."""


class Replay(Observer):
    """Looks at the losses of the training steps of a task; every rank has one.

    Args:
        first, count: number of this process's first device, and how many there are over all ranks.
        total: all ranks call it together.
        keep: writes a batch; None where nobody can read it once more.
    """

    def __init__(
        self, run: RunDir, accumulate: int, first: int, count: int, total: Total, keep: Keep | None
    ) -> None:
        self.run, self.accumulate, self.first, self.count = run, accumulate, first, count
        self.total, self.keep = total, keep
        self.before = bad_loss.pending(run)

    def after_step(self, step: Step) -> None:
        """Look at the metrics. Raises NotFiniteError: a loss is nan or inf."""
        if not step.counted:  # logged by a callback
            return
        if name := not_finite(step.metrics):
            found = self._find(name, step.number, step.epoch, step.batch, step.counted)
            said = self._again(found) if self.before else self._once(found)
            self.total([0.0])  # rank 0 has recorded it: the first rank that ends may be the end of all
            raise NotFiniteError(said)
        if self.before and step.number >= self.before.at:
            self._was_the_machine(self.before)
            self.before = None

    def _find(self, name: str, step: int, epoch: int, batch: int, counted: Sequence[Counted]) -> BadLoss:
        """Which batch was the first without a number, and on which devices."""
        numbers = [0.0] * self.count
        for device, (_, good) in enumerate(counted, self.first):
            numbers[device] = float(good)
        goods = [int(number) for number in self.total(numbers)]
        since, every = counted[0][0], self.accumulate
        least = min(*goods, since - 1)  # no sum is bad by itself: the reduction is, or the report
        ranks = [n for n, good in enumerate(goods) if good == least] or [*range(self.count)]
        first = batch - since + least
        bad_step = step - (batch - 1) // every + first // every
        where = [self._host(rank) for rank in ranks]
        return BadLoss(name, bad_step, epoch, first, step, tuple(ranks), tuple(where))

    def _host(self, rank: int) -> str:
        """Where a device is; several of one process have numbers, and their process a rank."""
        known = places(os.environ.get("TRAIN_HOSTS", ""))
        each = max(1, self.count // len(known)) if known else 1
        return known.get(rank // each, node_name())

    @property
    def _records(self) -> bool:
        return self.first == 0

    def _once(self, found: BadLoss) -> str:
        if self._records:
            with suppress(CheckpointError, OSError):  # the others wait for this rank
                bad_loss.record(self.run, found)
        return (
            f"{_what(found)}, first on {found.where}; trainer.detect_nan=replay computes it again from a checkpoint before it, which "
            f"resume={display_path(self.run.path)} does too."
        )

    def _again(self, found: BadLoss) -> str:
        kept = ""
        if self._records:
            with suppress(CheckpointError, OSError):
                bad_loss.judge(self.run, "repeated")
                bad_loss.record(self.run, replace(found, verdict="repeated"))
            kept = self._keep(found)
        return (
            f"{_what(found)} again, first on {found.where}, from the same weights and batches: that is the model or the data, and not the "
            f"machine{kept}; {ADVICE}."
        )

    def _was_the_machine(self, before: BadLoss) -> None:
        if not self._records:
            return
        with suppress(CheckpointError, OSError):
            bad_loss.judge(self.run, "machine")
            if len({*before.hosts}) == 1 < len(hosts()):
                nodes_file.add(self.run, before.hosts[0])
        print(
            f"warning: {before.metric} was nan or inf in step {before.step}, first on {before.where}, and is a number now, from the "
            "same weights and batches: that was the machine, and not the model or the data.",
            file=sys.stderr,
            flush=True,
        )

    def _keep(self, found: BadLoss) -> str:
        """Write what the first rank had in that batch to RUN/debug; says where."""
        if self.keep is None:
            return ""
        rank = found.ranks[0]
        name = f"nan-epoch-{found.epoch + 1}-batch-{found.batch + 1}-rank-{rank}.npz"
        with suppress(OSError, DataError):
            make_folder(self.run.debug)
            rows = self.keep(found.epoch, found.batch, rank, self.run.debug / name)
            first = ", ".join(map(str, rows[:8])) + (" ..." if len(rows) > 8 else "")
            return f"; rows {first} of rank {rank} are kept in {display_path(self.run.debug / name)}"
        return ""


def _what(found: BadLoss) -> str:
    return f"{found.metric} is nan or inf in step {found.step}, batch {found.batch + 1} of epoch {found.epoch + 1}"
