"""Modules built without memory have bit by bit the values of modules built at once."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from src.models.lightning.gpt import GPT
from train_anywhere.training.lightning.checkpoint.position import seed_everything
from train_anywhere.training.lightning.strategies.deferred_weights import DeferredWeights, build_deferred


class Initialised(nn.Module):
    """Ways to initialize weights: draws, views, copies, decompositions, own generators."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.cut = nn.Linear(7, 9), nn.Conv2d(3, 4, 3)
        nn.init.orthogonal_(self.square.weight)
        nn.init.trunc_normal_(self.cut.weight)
        self.cut.weight.data.mul_(2)
        self.words = nn.Embedding(11, 7, padding_idx=2)
        self.recurrent = nn.LSTM(7, 5, 2)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.copied = nn.TransformerEncoder(layer, 3)
        self.own = nn.Parameter(torch.randn(5, 5))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.batch = nn.BatchNorm2d(4)
        self.register_buffer("constants", torch.empty(4).fill_(3))
        self.given, generator = nn.Linear(4, 4), torch.Generator().manual_seed(3)
        self.given.weight.data.normal_(generator=generator)
        self.loaded = nn.Linear(2, 2)
        self.loaded.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.arange(2.0)})


class Looking(nn.Module):
    """Needs a number while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.start = float(self.layer.weight.detach().sum())


class Indexing(nn.Module):
    """torch makes the 4 without telling anyone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        with torch.no_grad():
            self.layer.weight.mul_(random.random() + float(np.random.rand()))
        self.layer.bias.data[1] = 4


def gpt() -> GPT:
    return GPT(31, 8, 2, 4, 2, 16, None, False)


def values(module: nn.Module, deferred: DeferredWeights | None) -> dict[str, Tensor]:
    return {n: deferred.value(t) if deferred and t.is_meta else t for n, t in module.state_dict().items()}


@pytest.mark.parametrize("make", [Initialised, Looking, Indexing, gpt])
def test_the_same_bits(make: Callable[[], nn.Module]) -> None:
    seed_everything(1)
    whole, after = make(), torch.get_rng_state()
    seed_everything(1)
    built, deferred = build_deferred(make)
    late = values(built, deferred)
    assert torch.equal(torch.get_rng_state(), after)
    assert late.keys() == whole.state_dict().keys()
    assert all(torch.equal(late[name], value) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("make, without", [(Initialised, {"own"}), (Looking, set()), (gpt, set())])
def test_weights_have_no_memory_and_all_else_has(make: Callable[[], nn.Module], without: set[str]) -> None:
    built, _ = build_deferred(make)
    assert {name for name, p in built.named_parameters() if not p.is_meta} == without
    assert not any(buffer.is_meta for buffer in built.buffers())


def test_what_can_t_be_built_so_is_built_as_it_is() -> None:
    built, deferred = build_deferred(Indexing)
    assert deferred is None
    assert built.layer.bias[1] == 4


def test_an_error_of_the_module_itself_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        build_deferred(lambda: nn.Linear(1 // 0, 1))


def test_values_that_are_given() -> None:
    built, deferred = build_deferred(gpt)
    assert deferred
    deferred.set_value(built.state_dict()["head.weight"], lambda: torch.ones(31, 16))
    assert deferred.value(built.embedding.weight).eq(1).all()  # they are one
