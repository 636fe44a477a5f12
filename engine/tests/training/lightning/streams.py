"""Streams of images whose first pixel is the id / 1000, split over ranks in several ways."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from engine.tests.data.shard_files import image
from train_anywhere.data import Splits

FACTS = {"shape": (4, 4, 1), "classes": 7, "outputs": 7}


class Shards(IterableDataset[Any]):
    """Rows in shards of ten, as Hugging Face's IterableDataset."""

    def __init__(self, shards: range = range(24)) -> None:
        self.shards = shards

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    def shard(self, num_shards: int, index: int) -> "Shards":
        return Shards(self.shards[index::num_shards])

    def __iter__(self) -> Iterator[Any]:
        for number in self.shards:
            for key in range(10 * number, 10 * number + 10):
                yield torch.from_numpy(image(key)), key % 7


class Own(IterableDataset[Any]):
    """Rows that the stream divides itself, or, with `own` false, does not; with `uneven` rank 0 of 2 gets 100 of 240."""

    def __init__(self, own: bool, uneven: bool = False) -> None:
        self.uneven = uneven
        self.part = (
            (int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))) if own else (0, 1)
        )

    def __iter__(self) -> Iterator[Any]:
        keys = range(self.part[0], 240, self.part[1])
        for key in [range(100), range(100, 240)][self.part[0]] if self.uneven else keys:
            yield torch.from_numpy(image(key)), key % 7


def open_shards() -> Splits:
    return Splits(Shards(), None, None, FACTS)


def open_own(own: bool = True, uneven: bool = False) -> Splits:
    return Splits(Own(own, uneven), None, None, FACTS)
