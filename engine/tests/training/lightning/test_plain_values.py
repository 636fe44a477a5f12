"""Values that a checkpoint may hold."""

from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.checkpoint.buffers import keep_plain_values


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
