"""Targets are called with their arguments, and with what they take of what is supplied."""

import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf.errors import InterpolationKeyError

from tools.testing.frameworks import FIRST
from train_anywhere.config.instantiate import explain_target_errors, instantiate
from train_anywhere.config.keys import OpenSection
from train_anywhere.errors import CheckpointError, ConfigError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "made_here.py").write_text(
        "class Inner:\n    def __init__(self, size): self.size = size\n"
        "def make(a, b=2, *, seed=None): return a, b, seed\n"
        "def split(seed=42, batch_size=8): return seed, batch_size\n"
        "def anything(**options): return options\n"
        "number = 3\n"
    )
    (tmp_path / "broken_here.py").write_text("import no_such_package_zzq\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_here", raising=False)
    return "made_here"


def call(target: str, supplied: dict[str, Any] | None = None, **arguments: Any) -> Any:
    section = OpenSection({FIRST: target}, None, arguments)
    return instantiate(section, "callbacks.mine", FIRST, **(supplied or {}))


def test_arguments_and_what_is_supplied(module: str) -> None:
    assert call("made_here.make", {"seed": 7, "params": 1}, a=1) == (1, 2, 7)
    assert call("made_here.make", {"seed": 7}, a=1, seed=8) == (1, 2, 8)
    assert call("made_here.anything", {"seed": 7}, a=1) == {"a": 1}  # supplied by name only
    assert call("builtins.dict", a=1) == {"a": 1}  # whose arguments are unknown


def test_a_seed_of_the_target_s_own_stays(module: str) -> None:
    assert call("made_here.split", {"seed": 7, "batch_size": 2}) == (42, 2)
    assert call("made_here.split", {"seed": 7}, seed=8) == (8, 8)


def test_an_argument_may_name_a_target_itself(module: str) -> None:
    inner, others, _ = call(
        "made_here.make",
        a={"_target_": "made_here.Inner", "size": 3},
        b=[{"_target_": "made_here.Inner", "size": 4}],
    )
    assert (inner.size, others[0].size) == (3, 4)


def test_hydra_s_own_keys(module: str) -> None:
    inner = {"_target_": "made_here.Inner", "size": 3}
    made, other, _ = call("made_here.make", a={**inner, "_partial_": True}, b={**inner, "_convert_": "all"})
    assert (made().size, other.size) == (3, 3)
    assert call("made_here.make", {"seed": 7}, _args_=[1, inner])[1].size == 3
    assert call("made_here.make", a=inner, _recursive_=False) == (inner, 2, None)
    assert call("made_here.make", _partial_=True, b=1)(5) == (5, 1, None)
    assert call("builtins.dict", _args_=[[["a", 1]]], b=2) == {"a": 1, "b": 2}


MAKE = "callbacks.mine: made_here.make: "


@pytest.mark.parametrize(
    "target, arguments, sentence",
    [
        ("made_here.make", {}, MAKE + "missing a required argument: 'a'."),
        ("made_here.make", {"a": 1, "sed": 2}, MAKE + "got an unexpected keyword argument 'sed'. Did you mean 'seed'?"),
        ("made_here.make", {"_args_": [1], "a": 2}, MAKE + "multiple values for argument 'a'."),
        ("made_here.make", {"_args_": [1, 2, 3]}, MAKE + "too many positional arguments."),
        ("made_here.make", {"_partial_": True, "sed": 2}, MAKE + "got an unexpected keyword argument 'sed'. Did you mean 'seed'?"),
        ("made_here.mak", {}, "callbacks.mine._target_=made_here.mak: made_here has no mak. Did you mean 'make'?"),
        ("made_here.number", {}, "callbacks.mine._target_=made_here.number is a int, not a class or function."),
        ("zzq.Name", {}, "callbacks.mine._target_=zzq.Name: there is no module zzq in this project or its environment."),
        ("broken_here.Name", {}, "callbacks.mine._target_=broken_here.Name needs the package no_such_package_zzq, which is not installed."),
    ],
)  # fmt: skip
def test_what_can_not_be_called(module: str, target: str, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(target, **arguments)
    assert caught.value.problems == [sentence]


def test_what_a_package_raises_is_one_message_and_a_mistake_keeps_its_traceback() -> None:
    for refused in (TypeError("no"), InterpolationKeyError("no.")):
        with (
            pytest.raises(ConfigError, match=r"^loggers.x can't be made: no.$"),
            explain_target_errors("loggers.x"),
        ):
            raise refused
    for kept in (NameError("no"), OSError("no"), CheckpointError("no")):
        with pytest.raises(type(kept), match=r"^no$"), explain_target_errors("loggers.x"):
            raise kept
