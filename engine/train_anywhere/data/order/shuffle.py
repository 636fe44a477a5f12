"""The order of samples in an epoch, the same on every rank and with every version of numpy.

Up to `SORTED` samples, the order comes from sorting random numbers. For more, each rank computes only its own rows, so that neither time
nor memory grows with the data set: a Feistel network on numbers below a product (Black and Rogaway, "Ciphers with arbitrary finite
domains", CT-RSA 2002) maps each position in the order to its sample, one to one.
"""

from functools import lru_cache
from math import isqrt

import numpy as np

SORTED = 2**17  # most samples to sort, which takes 10 ms and 1 MiB
BLOCK = 2048  # positions computed at once: a call for each small batch would take longer than the rest of its work
ROUNDS = 4  # rounds of the Feistel network, each on both halves


def shuffled_rows(length: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """Return the samples at the positions `start` to `stop` of an epoch's order: int64 [stop - start]; `stop` is at most `length`."""
    if length <= SORTED:
        return permutation(length, seed, epoch)[start:stop].copy()
    first = start // BLOCK
    blocks = [
        _block(length, seed, epoch, number) for number in range(first, max(first, (stop - 1) // BLOCK) + 1)
    ]
    return np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]


@lru_cache(maxsize=4)
def permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """Return all of `length` samples in a random order, by sorting: int64 [length], read-only (all callers share it).

    It sorts raw PCG64 output instead of calling `Generator.permutation`: numpy keeps the raw streams of its bit generators stable across
    versions, but not the output of a Generator (NEP 19).
    """
    order = np.argsort(np.random.PCG64([seed, epoch]).random_raw(length), kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=64)
def _block(length: int, seed: int, epoch: int, number: int) -> np.ndarray:
    """Return the samples at `BLOCK` positions of the order, fewer at its end: int64."""
    keys = np.random.PCG64([seed, epoch]).random_raw(2 * ROUNDS)
    positions = np.arange(number * BLOCK, min((number + 1) * BLOCK, length), dtype=np.uint64)
    found = _feistel(positions, length, keys)
    # the product of the halves' sizes is a little above `length`: larger results go through the network again until they are below
    while len(beyond := np.flatnonzero(found >= length)):
        found[beyond] = _feistel(found[beyond], length, keys)
    return found.astype(np.int64)


def _feistel(numbers: np.ndarray, length: int, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers, uint64 [n], below height * width, the smallest product of nearly equal factors that is at least `length`."""
    height = isqrt(length - 1) + 1
    width = -(-length // height)
    upper, lower = np.divmod(numbers, np.uint64(width))
    for upper_key, lower_key in keys.reshape(-1, 2):
        upper = (upper + _mix(lower, upper_key)) % np.uint64(height)
        lower = (lower + _mix(upper, lower_key)) % np.uint64(width)
    return upper * np.uint64(width) + lower


def _mix(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return a random number below 2**32 for each, uint64 [n]; it mixes like splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = (numbers + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(32)
