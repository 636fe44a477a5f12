"""Every choice of data= opens, and what a target may return."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.tests.data.shard_files import write_shards
from tools.testing.frameworks import FIRST
from train_anywhere.config.choices import Data
from train_anywhere.config.command.compose import list_groups
from train_anywhere.config.instantiate import locate
from train_anywhere.config.schema import Config
from train_anywhere.data.array_data import array_rows, leaves
from train_anywhere.data.open_data import open_splits
from train_anywhere.errors import ConfigError, DataError

MakeConfig = Callable[..., Config]
OVERRIDES = {
    "mnist": ["data.dir={mnist_dir}", "data.download=false"],
    "imagefolder": ["data.dir={picture_dir}", "data.image_size=24"],
    "shards": ["data.dir={shard_dir}"],
    "synthetic": ["data.height=9", "data.width=7", "data.classes=5", "data.length=40", "data.val_length=8"],
}
"""What a choice needs here; the others open as they are."""


@pytest.fixture
def shard_dir(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards")


@pytest.fixture(params=sorted({*list_groups()["data"]} - {"custom", "module"}))
def config(request: pytest.FixtureRequest, make_config: MakeConfig) -> Config:
    words = []
    for word in OVERRIDES.get(request.param, []):
        key, _, value = word.partition("=")
        words.append(f"{key}={request.getfixturevalue(value[1:-1]) if value.startswith('{') else value}")
    return make_config(f"data={request.param}", *words)


def test_every_choice_keeps_the_promises_of_a_data_set(config: Config) -> None:
    splits = open_splits(config.data, FIRST, seed=3)
    wanted = None
    for part, train in ((splits.train, True), (splits.val, False), (splits.test, False)):
        rows = part.read(np.arange(min(len(part), 6)), epoch=0, train=train)
        arrays = list(rows.values()) if isinstance(rows, dict) else list(rows)
        assert {len(a) for a in arrays} == {min(len(part), 6)}
        kinds = [(a.dtype, a.shape[1:]) for a in arrays]
        wanted = wanted or kinds
        assert kinds == wanted
        assert all(np.isfinite(a).all() for a in arrays)
        again = part.read(np.arange(min(len(part), 6)), epoch=0, train=train)
        for a, b in zip(arrays, again.values() if isinstance(again, dict) else again, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_is_known_beforehand_is_so(config: Config) -> None:
    if config.data.check is None:
        pytest.skip("it has no _check_")
    check = locate(config.data.check, "data._check_")
    arguments = {**config.data.arguments, "look": True, "stage": False, "installed_here": True}
    names = check.__code__.co_varnames[: check.__code__.co_argcount]
    known = check(**{name: arguments[name] for name in names})
    splits = open_splits(config.data, FIRST, seed=3)
    # mnist keeps a part of its training images to validate on
    assert known.length in (None, len(splits.train), len(splits.train) + len(splits.val))
    assert {name: splits.facts[name] for name in known.facts} == dict(known.facts)
    assert known.later is None or {*known.facts, *known.later} == {*splits.facts}


TWO = [1, 2], [3]


def returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> Any:
    """Splits of a target that returns what the expression says."""
    (tmp_path / "mine_returned.py").write_text(
        "from types import SimpleNamespace\nimport numpy as np\nclass Module:\n    def train(self): ...\n"
        f"def open_data(seed, batch_size=None):\n    return {what}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "mine_returned", raising=False)
    section = Data(
        target={FIRST: "mine_returned.open_data"},
        check=None,
        arguments={},
        name="mine",
        batch_size=1,
        workers=0,
    )
    return open_splits(section, FIRST, seed=7)


@pytest.mark.parametrize(
    "what",
    [
        "([1, 2], [3])", "([1, 2], [3], None)", "dict(train=[1, 2], val=[3])", "SimpleNamespace(train=[1, 2], val=[3], test=None)",
        "[[1, 2], [3]]", "dict(train=[1, 2], validation=[3])",
    ],
)  # fmt: skip
def test_a_target_may_return(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = returned(tmp_path, monkeypatch, what)
    assert (splits.train, splits.val, splits.test) == (*TWO, None)


def test_a_module_of_data_is_left_to_its_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = returned(tmp_path, monkeypatch, "Module()")
    assert splits.train is splits.val is splits.test
    assert type(splits.train).__name__ == "Module"


@pytest.mark.parametrize(
    "what", ["dict(train=[1, 2], test=[3])", "SimpleNamespace(train=[1, 2], test=[3])", "([1, 2], None, [3])"]
)
def test_there_may_be_no_validation(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = returned(tmp_path, monkeypatch, what)
    assert (splits.train, splits.val, splits.test) == ([1, 2], None, [3])


@pytest.mark.parametrize("what", ["[1, 2, 3, 4]", "range(4)", "(row for row in range(4))"])
def test_a_data_set_by_itself_is_trained_from(what, tmp_path, monkeypatch) -> None:
    splits = returned(tmp_path, monkeypatch, what)
    assert splits.train and (splits.val, splits.test) == (None, None)


X, Y = "np.arange(16.0).reshape(8, 2)", "np.arange(8)"


@pytest.mark.parametrize(
    ("what", "val"),
    [
        (f"({X}, {Y}), ({X}[:4], {Y}[:4])", 4),
        (f"({X}, {Y}), ({X}, {Y})", 8),
        (f"({X}, {Y}, np.ones(8)), ({X}[:4], {Y}[:4], np.ones(4))", 4),
        (f"({X}, [0] * 8), ({X}[:4], [0] * 4)", 4),
        (f"[[{X}, {Y}], [{X}[:4], {Y}[:4]]]", 4),
        (f"[[{X}, [0] * 8], [{X}[:4], [0] * 4]]", 4),
        (f"dict(train=(dict(a={X}, b={X}), {Y}), val=(dict(a={X}[:4], b={X}[:4]), {Y}[:4]))", 4),
        (f"dict(train=dict(x={X}, y={Y}), val=dict(x={X}[:4], y={Y}[:4]))", 4),
        (f"{X}, {Y}", None),
        (f"dict(x={X}, y={Y})", None),
    ],
)
def test_arrays_are_read_by_rows(what, val, tmp_path, monkeypatch) -> None:
    splits = returned(tmp_path, monkeypatch, what)
    assert (len(splits.train), splits.val and len(splits.val)) == (8, val)
    rows = leaves(splits.train.read(np.array([3, 1]), 0, True))
    assert rows[0].dtype == np.float32 and rows[0].tolist() == [[6, 7], [2, 3]]
    assert {len(array) for array in rows} == {2}


def test_arrays_of_different_lengths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"have \[8, 7\] rows, but all need the same number of rows"):
        returned(tmp_path, monkeypatch, f"({X}, {Y}[:7]), ({X}, {Y})")


def test_a_list_of_rows_that_are_arrays_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = returned(tmp_path, monkeypatch, f"dict(train=list({X})[:3], val=list({X}))")
    assert (type(splits.train), len(splits.train), len(splits.val)) == (list, 3, 8)


def test_a_generator_function_is_called_for_each_pass(tmp_path, monkeypatch) -> None:
    splits = returned(tmp_path, monkeypatch, "dict(train=lambda: (row for row in [1, 2]))")
    assert list(splits.train) == list(splits.train) == [1, 2]


@pytest.mark.parametrize("what", ["dict(validation=[1])", "{}"])
def test_nothing_to_train_on_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="returns no train; return a mapping"):
        returned(tmp_path, monkeypatch, what)


def test_an_array_without_a_length_is_not_asked_for_it() -> None:
    class Lazy:
        shape = (3, 2)

        def __array__(self) -> np.ndarray:
            return np.zeros(self.shape)

    assert array_rows((Lazy(), "name")) is None
