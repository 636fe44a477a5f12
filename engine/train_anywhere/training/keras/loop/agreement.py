"""Check that all ranks and devices have the same weights and train the same layers."""

import hashlib

from train_anywhere.errors import RanksDifferError
from train_anywhere.training.keras.dropin.trainable import read_flags, trainable_parts
from train_anywhere.training.keras.module import Module

PARTS = 4
"""Number of 16-bit integers that a checksum is sent as; any float type holds them exactly."""


def refuse_different_weights(module: Module) -> None:
    """Compare the weights of all replicas of all ranks; all processes call this.

    Raises:
        RanksDifferError: weights differ; the message names the replicas that differ from the first.
    """
    strategy = module.strategy
    if strategy.replicas == 1:
        return
    variables = [v for v in module.weights().values() if v.name != "seed_generator_state"]
    strategy.average_variables(module.moving_statistics())
    values = [strategy.local_values(v) for v in variables]
    here = len(strategy.local_values(variables[0]))
    numbers = [0.0] * (strategy.replicas * PARTS)
    for replica in range(here):
        digest = hashlib.sha256()
        for copies in values:
            digest.update(copies[min(replica, len(copies) - 1)].numpy().tobytes())
        first = (strategy.rank * here + replica) * PARTS
        numbers[first : first + PARTS] = checksum(digest.digest())
    agreed = strategy.sum(numbers)
    sums = [tuple(agreed[n : n + PARTS]) for n in range(0, len(agreed), PARTS)]
    refuse_difference(sums, "rank" if strategy.processes > 1 else "device")


def refuse_different_layers(module: Module) -> None:
    """Compare which layers are trainable on each rank; all processes call this. Raises RanksDifferError."""
    count = module.strategy.processes
    if count == 1:
        return
    agreed = module.strategy.sum([float(flag) for flag in read_flags(module.model)])
    names = (part.name for part in trainable_parts(module.model))
    if different := [
        f"{name} on {ranks:.0f}" for name, ranks in zip(names, agreed, strict=True) if 0 < ranks < count
    ]:
        raise RanksDifferError(
            f"the {count} ranks train different layers ({', '.join(different[:3])} of them): a callback sets `trainable` on some ranks "
            "only; let it do so on all of them."
        )


def checksum(digest: bytes) -> list[float]:
    """Return the first bytes of a digest as `PARTS` numbers."""
    return [float(int.from_bytes(digest[2 * n : 2 * n + 2], "big")) for n in range(PARTS)]


def refuse_difference(sums: list[tuple[float, ...]], what: str) -> None:
    """Raise RanksDifferError if the checksums are not all equal; `what` is "rank" or "device"."""
    others = [str(n) for n, one in enumerate(sums) if one != sums[0]]
    if others:
        raise RanksDifferError(
            f"the weights of {what}{'s' if len(others) > 1 else ''} {', '.join(others)} of {len(sums)} are not those of {what} 0: "
            f"the model changes them separately on each {what} (weights that are changed without an optimizer, or a state that depends "
            f"on the rows); the checkpoints hold those of {what} 0."
        )
