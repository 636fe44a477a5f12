"""Logged values over all ranks."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from train_anywhere.errors import ConfigError, RanksDifferError, listed
from train_anywhere.training.lightning.checkpoint.rank_state import gather_checksums
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy

HASHES = 4
"""Number of hashes of the logged names that ranks compare; each is below 2**20, so that sums of squares are exact."""

PAIRS = 32
"""The number of values in an exchange is a multiple of this."""


class OverRanks(pl.Callback):
    """Callback, among the first ones, that reduces over the ranks what a module logs.

    Means of an epoch are taken over all rows, as with `sync_dist=True`. What is logged by step stays this rank's own, because its
    reduction would cost an exchange per step. `reduce` reduces values of the report. A value that decides, such as one of `monitors` or
    that of a schedule, is reduced in any case.
    """

    def __init__(
        self, trainer: pl.Trainer, module: pl.LightningModule, monitors: Iterable[str | None]
    ) -> None:
        self._trainer, self._monitors = trainer, {_base(name) for name in monitors if name}
        self._names: dict[str, None] = {}
        self._alone, self._single = set[str](), set[str]()
        self._epoch_ends = self._refused = False
        # of the newest batch, and of all batches of the epoch or evaluation
        self._batch, self._rows = {"train": 1, "evaluation": 1}, {"train": 0, "evaluation": 0}
        log = module.log

        def log_over_ranks(name: str, value: Any, *arguments: Any, **named: Any) -> None:
            if named.get("rank_zero_only"):
                self._alone.add(name)
                self._refused |= self._decides(name)
            elif not arguments:
                self._names[name] = None
                by_step = named.get("on_step")
                if by_step is None:
                    by_step = self._trainer.training and not self._epoch_ends
                if by_step and not named.get("on_epoch"):
                    self._single.add(name)
                named["sync_dist"] = bool(named.get("sync_dist") or not by_step or self._decides(name))
            log(name, value, *arguments, **named)

        # callbacks log by this function, too
        module.log = log_over_ranks  # type: ignore[method-assign]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the rows of an epoch from 0."""
        self._rows["train"], self._epoch_ends = 0, False

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Treat what is logged from now on as values of the epoch."""
        self._epoch_ends = True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the names and rows of another evaluation."""
        self._names, self._rows["evaluation"] = {}, 0

    on_test_start = on_validation_start

    def count_rows(self, batch: Any) -> None:
        """Count the rows of this rank's batch."""
        rows = 1
        with suppress(MisconfigurationException):
            rows = extract_batch_size(batch)
        self._batch[self._stage] = rows
        self._rows[self._stage] += rows

    def compare_names(self) -> None:
        """Raise ConfigError unless the ranks have logged the same names. Continuing would hang or give wrong metrics."""
        names, self._names = [*self._names], {}
        self._exchange(names, [])

    def reduce(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the means over the rows of all ranks. All ranks call this, with the same names."""
        shared = {name: value for name, value in values.items() if _base(name) not in self._alone}
        batch, epoch = self._batch[self._stage], self._rows[self._stage] or 1
        rows = [batch if name in self._single or name.endswith("_step") else epoch for name in shared]
        sums = self._exchange([*shared], [[v * n, n] for v, n in zip(shared.values(), rows, strict=True)])
        means = (total / count for total, count in sums)
        return {**values, **dict(zip(shared, means, strict=True))}

    @property
    def _stage(self) -> str:
        return "train" if self._trainer.training else "evaluation"

    def _decides(self, name: str) -> bool:
        schedules = self._trainer.lr_scheduler_configs
        return name in self._monitors or any(_base(str(one.monitor)) == name for one in schedules)

    def _exchange(self, names: list[str], pairs: list[list[float]]) -> list[list[float]]:
        """Compare the names, and return the sums of pairs over the ranks, in one exchange."""
        strategy = self._trainer.strategy
        digest = hashlib.sha256("\n".join(names).encode()).digest()
        own = [int.from_bytes(digest[4 * n : 4 * n + 4]) % 2**20 for n in range(HASHES)]
        # of the same size on all ranks, if they have logged different numbers of values
        filled = [[0.0, 0.0]] * (PAIRS - len(pairs) % PAIRS)
        rows = [*([n, n * n] for n in own), [self._refused, 0], *pairs, *filled]
        numbers = torch.tensor(rows, dtype=torch.float64, device=strategy.root_device)
        ranks = self._trainer.world_size
        reduced: Any = strategy.reduce(numbers, reduce_op="sum")
        sums = reduced.tolist()
        if sums[HASHES][0]:
            raise ConfigError(
                "the monitored metric is logged with rank_zero_only=True, and all ranks must know it; log it on all ranks with "
                "sync_dist=True."
            )
        if any(ranks * squares != total * total for total, squares in sums[:HASHES]):
            raise ConfigError(
                f"the ranks logged different metrics (rank {strategy.global_rank}: {', '.join(names) or 'nothing'}); call self.log on all "
                "ranks, or use rank_zero_only=True."
            )
        return list(sums[HASHES + 1 :][: len(pairs)])


def _base(name: str) -> str:
    """Return the name that was logged, from one with Lightning's suffix."""
    return name.removesuffix("_step").removesuffix("_epoch")


def read_weights(module: nn.Module) -> Iterator[bytes]:
    """Yield the bytes of each parameter."""
    for parameter in module.parameters():
        yield parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def refuse_different_weights(module: nn.Module, trainer: pl.Trainer) -> None:
    """Raise RanksDifferError on all ranks if their weights differ. All ranks must call it."""
    ranks = trainer.world_size
    if ranks == 1 or isinstance(trainer.strategy, FullyShardedStrategy):  # each rank has a part
        return
    checksums = gather_checksums(read_weights(module), trainer)
    others = [str(rank) for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if others:
        named = f"rank {others[0]}" if len(others) == 1 else f"ranks {listed(others)}"
        raise RanksDifferError(
            f"the weights of {named} of {ranks} are not those of rank 0: each rank changes them in its own way (a step that depends on "
            "the rank, or weights that change without a gradient); the checkpoints hold those of rank 0."
        )
