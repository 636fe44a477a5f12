"""A step of both frameworks sends exactly the bytes and operations of a loop by hand."""

from collections.abc import Callable

import pytest

from benchmarks.wire import STEPS, Sent, count
from train_anywhere.distributed.packages import horovod_problem

WEIGHTS = 4 * (9 * 32 + 2 * 32 + 9 * 32 * 64 + 2 * 64 + (64 * 4 * 4 + 1) * 128 + 129 * 10)
"""Bytes of the gradients of the network."""
Require = Callable[[object, str], None]


def collectives(sent: Sent) -> int:
    """Return the number of operations."""
    return sum(n for name, n in sent.items() if name.startswith(("gloo:", "horovod")) and "bytes" not in name)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_a_step_sends_what_the_strategy_sends_by_hand(strategy: str, require: Require) -> None:
    require(strategy != "horovod" or not horovod_problem("torch"), "run `make horovod`")
    plain, ours = (count("lightning", side, strategy) for side in ("raw", "ours"))
    if strategy == "fsdp":
        assert any("gather" in name for name in plain["steps"]), plain
    else:  # the gradients: one bucket, or one operation for each parameter, which Horovod joins
        name = "gloo:all_reduce" if strategy == "ddp" else "horovod_torch_allreduce_async"
        assert plain["steps"][name] == STEPS * (1 if strategy == "ddp" else 10)
        assert plain["steps"][f"{name} bytes"] == STEPS * WEIGHTS
    assert ours["steps"] == plain["steps"]
    # one exchange for what the ranks agree on, one for the sums of the metrics
    assert collectives(ours["row"]) == 2, ours["row"]


@pytest.mark.slow
def test_the_count_sees_the_signal_flag_of_lightning() -> None:
    """Should Lightning drop its flag one day, our replacement of it can go."""
    flagged, plain = (
        count("lightning", "lightning", "ddp")["steps"],
        count("lightning", "raw", "ddp")["steps"],
    )
    assert flagged["gloo:broadcast"] == plain["gloo:broadcast"] + STEPS
    assert flagged["aten::_local_scalar_dense"] == STEPS


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
def test_a_step_sends_what_plain_horovod_sends(require: Require) -> None:
    """Its guide's loop sends one operation for each gradient, ours one with the same bytes."""
    require(not horovod_problem("tensorflow"), "run `make horovod`")
    plain, ours = count("keras", "raw", "horovod"), count("keras", "ours", "horovod")
    assert plain["steps"] == {"HorovodAllreduce": STEPS * 10, "HorovodAllreduce bytes": STEPS * WEIGHTS}
    assert ours["steps"] == {
        "HorovodGroupedAllreduce": STEPS,
        "HorovodGroupedAllreduce bytes": STEPS * WEIGHTS,
    }
    assert ours["row"]["sum"] == 1 and len(ours["row"]) == 2
