"""Host copies of a training state: plain values in the same memory each time, independent of the training."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.checkpoint.contents import Buffers, keep_plain_values


def saved(buffers: Buffers, tmp_path: Path) -> Any:
    buffers.write(tmp_path / "model.ckpt")
    return torch.load(tmp_path / "model.ckpt", weights_only=True)


def test_what_training_does_next_is_not_in_the_copy(tmp_path: Path) -> None:
    weights, buffers = torch.arange(6.0).reshape(2, 3), Buffers()
    state = {"weights": weights, "moments": [weights.t(), (weights[0], 3)], "step": 7}
    buffers.fill(state)
    weights.zero_()
    state["step"] = 8
    copy = saved(buffers, tmp_path)
    assert copy["step"] == 7 and copy["moments"][1][1] == 3
    expected = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(copy["weights"], expected)
    assert torch.equal(copy["moments"][0], expected.t())
    assert torch.equal(copy["moments"][1][0], expected[0])


def test_memory_is_kept_and_holds_one_copy() -> None:
    model = torch.nn.Linear(100, 100)
    tied = {"state": model.state_dict(), "again": model.state_dict()}
    buffers = Buffers()
    buffers.fill(tied)
    before = [buffer.data_ptr() for buffer in buffers._buffers]
    with torch.no_grad():
        model.weight.fill_(1.0)
    buffers.fill(tied)
    assert [buffer.data_ptr() for buffer in buffers._buffers] == before
    assert sum(buffer.numel() for buffer in buffers._buffers) == 100 * 100 + 100
    assert bool((buffers._state["again"]["weight"] == 1.0).all())


def test_a_state_that_changes_its_shape(tmp_path: Path) -> None:
    buffers = Buffers()
    buffers.fill([torch.zeros(3), torch.zeros(2, dtype=torch.int64)])
    buffers.fill([torch.ones(4), torch.ones(2, dtype=torch.int64), torch.ones(5)])
    assert [len(tensor) for tensor in saved(buffers, tmp_path)] == [4, 2, 5]


def test_versions_of_layers_are_kept() -> None:
    buffers = Buffers()
    buffers.fill(torch.nn.BatchNorm1d(3).state_dict())
    assert isinstance(buffers._state, OrderedDict)
    assert buffers._state._metadata[""]["version"] == 2  # type: ignore[attr-defined]


def test_a_full_disk_is_an_error_of_the_disk(require: Callable[[object, str], None]) -> None:
    require(Path("/dev/full").exists(), "Linux has a disk that is always full: /dev/full")
    buffers = Buffers()
    buffers.fill([torch.zeros(1 << 20)])
    with pytest.raises(OSError, match="No space left on device"):
        buffers.write(Path("/dev/full"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_from_a_gpu_the_copy_is_of_the_moment(tmp_path: Path) -> None:
    weights, buffers = torch.zeros(1 << 24, device="cuda"), Buffers()
    for value in range(5):
        buffers.fill({"weights": weights})
        weights += 1
        assert bool((saved(buffers, tmp_path)["weights"] == value).all())
    assert buffers._buffers[0].is_pinned()


def test_plain_values_stay_and_numbers_of_numpy_become_plain() -> None:
    state = {"lr_schedulers": [OrderedDict(last=np.float64(0.5)), defaultdict(list, a=[torch.ones(1)])]}
    kept = keep_plain_values(state, pytest.fail)["lr_schedulers"]
    assert type(kept[0]["last"]) is float and type(kept[1]) is dict


def test_entries_that_nobody_needs_are_left_out() -> None:
    told: list[str] = []
    given: dict[str, Any] = {"hyper_parameters": {"width": 3, "layer": torch.nn.Linear(1, 1)}}
    assert keep_plain_values(given, told.append) == {"hyper_parameters": {"width": 3}}
    assert len(told) == 1 and "hyper_parameters.layer (a torch.nn.modules.linear.Linear)" in told[0]


def test_what_the_training_needs_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"can't hold lr_schedulers.how \(a builtins.type\)"):
        keep_plain_values({"lr_schedulers": {"how": object}}, pytest.fail)


def test_what_a_hook_has_added_is_left_out_or_refused() -> None:
    told: list[str] = []
    assert keep_plain_values({"scaler": object(), "count": 3}, told.append) == {"count": 3}
    assert len(told) == 1 and "scaler (a builtins.object)" in told[0]
    with pytest.raises(CheckpointError, match=r"can't hold scaler.*checkpoint\.other_objects=leave_out"):
        keep_plain_values({"scaler": object()}, pytest.fail, refuses=True)
