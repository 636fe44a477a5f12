"""A step sends exactly the bytes and operations of a loop by hand."""

from collections.abc import Callable

import pytest

from benchmarks.wire import STEPS, count
from train_anywhere.distributed.packages import horovod_problem

WEIGHTS = 4 * (9 * 32 + 2 * 32 + 9 * 32 * 64 + 2 * 64 + (64 * 4 * 4 + 1) * 128 + 129 * 10)
"""Bytes of the gradients of the network."""


@pytest.mark.slow
def test_a_step_sends_what_plain_tensorflow_sends() -> None:
    """All gradients are one operation. Metrics, batch norm, dropout and prefetch send nothing."""
    plain = count("keras", "raw", "multiworker_mirrored")
    ours = count("keras", "ours", "multiworker_mirrored", "optimizer=adamw", "model.dropout=0.1")
    assert ours["steps"] == {"CollectiveReduceV2": STEPS, "CollectiveReduceV2 bytes": STEPS * WEIGHTS}
    assert plain["steps"] == ours["steps"]
    assert ours["row"]["sum"] == 1 and len(ours["row"]) == 2  # the metrics, with the wish to stop


@pytest.mark.slow
@pytest.mark.horovod
def test_a_step_sends_what_plain_horovod_sends(require: Callable[[object, str], None]) -> None:
    """Its guide's loop sends one operation for each gradient, ours one with the same bytes."""
    require(not horovod_problem("tensorflow"), "run `make horovod`")
    plain, ours = count("keras", "raw", "horovod"), count("keras", "ours", "horovod")
    assert plain["steps"] == {"HorovodAllreduce": STEPS * 10, "HorovodAllreduce bytes": STEPS * WEIGHTS}
    assert ours["steps"] == {
        "HorovodGroupedAllreduce": STEPS,
        "HorovodGroupedAllreduce bytes": STEPS * WEIGHTS,
    }
    assert ours["row"]["sum"] == 1 and len(ours["row"]) == 2
