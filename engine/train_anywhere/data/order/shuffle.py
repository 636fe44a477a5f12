"""The order of samples in an epoch, the same on every rank and with every version of numpy.

Up to `SORTED` samples, random numbers are sorted. Of more, each rank computes its own rows alone, so that neither time nor memory grows
with the set: a Feistel network on numbers below a product (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002) gives
each place in the order its sample, and no two places the same one.
"""

from functools import lru_cache
from math import isqrt

import numpy as np

SORTED = 2**17  # samples; sorting that many takes 10 ms and 1 MiB
BLOCK = 2048  # places that are computed at once: a call for each batch of a few rows would take longer than the batch's other work
ROUNDS = 4  # of both halves


def shuffled(length: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """What the order of `length` samples in an epoch has at `start` to `stop`: indices int64 [stop - start], `stop` at most `length`."""
    if length <= SORTED:
        return permutation(length, seed, epoch)[start:stop].copy()
    first = start // BLOCK
    blocks = [
        _block(length, seed, epoch, number) for number in range(first, max(first, (stop - 1) // BLOCK) + 1)
    ]
    return np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]


@lru_cache(maxsize=4)
def permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """All of `length` samples in a random order, by sorting: int64 [length], read-only (it is shared by all callers).

    Sorting raw PCG64 output instead of calling `Generator.permutation`: numpy keeps the raw streams of its
    bit generators stable across versions, but not what a Generator makes of them (NEP 19).
    """
    order = np.argsort(np.random.PCG64([seed, epoch]).random_raw(length), kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=64)
def _block(length: int, seed: int, epoch: int, number: int) -> np.ndarray:
    """`BLOCK` places of the order, fewer at its end: int64."""
    keys = np.random.PCG64([seed, epoch]).random_raw(2 * ROUNDS)
    places = np.arange(number * BLOCK, min((number + 1) * BLOCK, length), dtype=np.uint64)
    found = _feistel(places, length, keys)
    # The product of the halves' sizes is a little above `length`: what lies beyond goes through once more, until it does not.
    while len(beyond := np.flatnonzero(found >= length)):
        found[beyond] = _feistel(found[beyond], length, keys)
    return found.astype(np.int64)


def _feistel(numbers: np.ndarray, length: int, keys: np.ndarray) -> np.ndarray:
    """Other numbers for these, uint64 [n], all below the smallest product of two like factors that `length` fits into."""
    height = isqrt(length - 1) + 1
    width = -(-length // height)
    upper, lower = np.divmod(numbers, np.uint64(width))
    for upper_key, lower_key in keys.reshape(-1, 2):
        upper = (upper + _mixed(lower, upper_key)) % np.uint64(height)
        lower = (lower + _mixed(upper, lower_key)) % np.uint64(width)
    return upper * np.uint64(width) + lower


def _mixed(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """A random number below 2**32 for each, uint64 [n]; multiplied and shifted as in splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = (numbers + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
