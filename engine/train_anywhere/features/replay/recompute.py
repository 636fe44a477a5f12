"""`trainer.detect_nan=replay`: recompute a loss of nan or inf from the same weights and batches, to find its cause.

Each rank counts on its device the batches with a finite loss since the metrics were last read: one small operation per batch. When a
loss is not finite, the ranks agree on the first bad batch and stop. The launcher (in a job, `features/restarts/restart.py`) restarts
them from an earlier checkpoint. If the loss is bad again, the model or the data is at fault, and the batch is saved. If it is finite,
the machine is: a defective device computes a different result each time. NVIDIA's Megatron-LM does the same
(megatron/core/rerun_state_machine.py).
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from train_anywhere.distributed.launcher_env import hosts_by_rank
from train_anywhere.distributed.network.addresses import node_name
from train_anywhere.errors import CheckpointError, DataError, NotFiniteError
from train_anywhere.features.bad_nodes import nodes_file
from train_anywhere.features.feature import Observer, Rank, Step
from train_anywhere.features.notify.events import record_event
from train_anywhere.features.replay import bad_loss
from train_anywhere.features.replay.bad_loss import BadLoss
from train_anywhere.files.ordinary import make_folder
from train_anywhere.runs.attempts import hosts
from train_anywhere.runs.summary import NAN_ADVICE as ADVICE
from train_anywhere.runs.summary import display_path, find_nonfinite_loss


class Replay(Observer):
    """Observer of the losses of a task's training steps; every rank has one."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.run = rank, rank.run
        self.before = bad_loss.pending(rank.run)

    def after_step(self, step: Step) -> None:
        """Check the losses. Raises NotFiniteError: one is nan or inf."""
        if not step.batch_counts:  # logged by a callback
            return
        if name := find_nonfinite_loss(step.metrics):
            found = self._find(name, step.number, step.epoch, step.batch, step.batch_counts)
            message = self._record_repeated(found) if self.before else self._record_first(found)
            # wait until rank 0 has recorded it: the first rank that exits may end all of them
            self.rank.sum_over_ranks([0.0])
            raise NotFiniteError(message)
        if self.before and step.number >= self.before.at:
            self._blame_machine(self.before)
            self.before = None

    def _find(
        self, name: str, step: int, epoch: int, batch: int, counts: Sequence[tuple[int, int]]
    ) -> BadLoss:
        """Return the first batch with a loss that is not finite, and the devices that had it."""
        numbers = [0.0] * self.rank.devices
        for device, (_, good) in enumerate(counts, self.rank.first_device):
            numbers[device] = float(good)
        goods = [int(number) for number in self.rank.sum_over_ranks(numbers)]
        since, every = counts[0][0], self.rank.accumulate
        # if the losses of all devices are finite, only the reduced metric is not: blame the last batch
        least = min(*goods, since - 1)
        ranks = [n for n, good in enumerate(goods) if good == least] or [*range(self.rank.devices)]
        first = batch - since + least
        bad_step = step - (batch - 1) // every + first // every
        return BadLoss(name, bad_step, epoch, first, step, tuple(ranks), tuple(map(self._host, ranks)))

    def _host(self, rank: int) -> str:
        """Return the node of a device. A process, which is one rank, may have several devices."""
        known = hosts_by_rank(os.environ.get("TRAIN_HOSTS", ""))
        each = max(1, self.rank.devices // len(known)) if known else 1
        return known.get(rank // each, node_name())

    @property
    def _records(self) -> bool:
        return self.rank.first_device == 0

    def _record_first(self, found: BadLoss) -> str:
        """Record a loss that is not finite, and return the error message."""
        if self._records:
            record_event(
                self.run, "nan", f"{_describe(found)}, first on {found.ranks_and_hosts}; it is recomputed"
            )
            with suppress(CheckpointError, OSError):  # never fail here: the other ranks wait for this one
                bad_loss.record(self.run, found)
        return (
            f"{_describe(found)}, first on {found.ranks_and_hosts}; trainer.detect_nan=replay recomputes it from an earlier checkpoint, "
            f"as does resume={display_path(self.run.path)}."
        )

    def _record_repeated(self, found: BadLoss) -> str:
        """Record that the loss is bad again, save the batch, and return the error message."""
        saved = ""
        if self._records:
            with suppress(CheckpointError, OSError):
                bad_loss.record_verdict(self.run, "repeated")
                bad_loss.record(self.run, replace(found, verdict="repeated"))
            saved = self._save(found)
        return (
            f"{_describe(found)} again, first on {found.ranks_and_hosts}, from the same weights and batches: the cause is the model or "
            f"the data, not the machine{saved}; {ADVICE}."
        )

    def _blame_machine(self, before: BadLoss) -> None:
        """Record that a recomputed loss is finite, and print a warning."""
        if not self._records:
            return
        line = (
            f"{before.metric} was nan or inf in step {before.step}, first on {before.ranks_and_hosts}, but is finite now, from the same "
            "weights and batches: the cause is the machine, not the model or the data."
        )
        record_event(self.run, "nan", line)
        with suppress(CheckpointError, OSError):
            bad_loss.record_verdict(self.run, "machine")
            if len({*before.hosts}) == 1 < len(hosts()):
                nodes_file.add(self.run, before.hosts[0])
        print(f"warning: {line}", file=sys.stderr, flush=True)

    def _save(self, found: BadLoss) -> str:
        """Write the first bad rank's batch to RUN/debug, and return where, as part of a sentence; empty if it can't be read again."""
        if self.rank.save_batch is None:
            return ""
        rank = found.ranks[0]
        name = f"nan-epoch-{found.epoch + 1}-batch-{found.batch + 1}-rank-{rank}.npz"
        with suppress(OSError, DataError):
            make_folder(self.run.debug)
            rows = self.rank.save_batch(found.epoch, found.batch, rank, self.run.debug / name)
            first = ", ".join(map(str, rows[:8])) + (" ..." if len(rows) > 8 else "")
            return f"; rows {first} of rank {rank} are saved in {display_path(self.run.debug / name)}"
        return ""


def _describe(found: BadLoss) -> str:
    return f"{found.metric} is nan or inf in step {found.step}, batch {found.batch + 1} of epoch {found.epoch + 1}"
