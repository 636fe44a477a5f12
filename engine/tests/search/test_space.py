"""From what is typed to what Optuna draws from."""

import json
from collections.abc import Callable

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    json_to_distribution,
)

from train_anywhere.runs.study import Space
from train_anywhere.search.loop import make_space

Read = Callable[..., Space]


@pytest.fixture
def read() -> Read:
    return lambda *words: make_space(OverridesParser.create().parse_overrides([*words]))


@pytest.mark.parametrize(
    ("typed", "drawn"),
    [
        ("a,b", CategoricalDistribution(["a", "b"])),
        ("choice(16,32)", CategoricalDistribution(["16", "32"])),
        ("[16],[32,16]", CategoricalDistribution(["[16]", "[32,16]"])),
        ("shuffle(range(1,3))", CategoricalDistribution(["1", "2"])),
        ("range(1,10,3)", IntDistribution(1, 7, step=3)),
        ("range(0.0,0.5,0.25)", FloatDistribution(0, 0.25, step=0.25)),
        ("interval(0,1)", FloatDistribution(0, 1)),
        ("int(interval(1,9))", IntDistribution(1, 9)),
        ("tag(log,interval(1e-4,0.1))", FloatDistribution(1e-4, 0.1, log=True)),
    ],
)
def test_every_form(read: Read, typed: str, drawn: object) -> None:
    found = json_to_distribution(json.dumps(read("seed=3", f"key={typed}").distributions["key"]))
    if isinstance(drawn, CategoricalDistribution):
        assert isinstance(found, CategoricalDistribution) and {*found.choices} == {*drawn.choices}
    else:
        assert found == drawn


def test_words_of_a_trial(read: Read) -> None:
    space = read("++model.hidden=[8],[9]", "seed=1", "seed=2", "optimizer.lr=interval(0.5,1)")
    assert space.words({"model.hidden": "[9]", "optimizer.lr": 0.75}) == [
        "seed=2",
        "++model.hidden=[9]",
        "optimizer.lr=0.75",
    ]
    assert [words[1:] for words in space.extremes()] == [
        ["++model.hidden=[8]", "optimizer.lr=0.5"],
        ["++model.hidden=[9]", "optimizer.lr=1.0"],
    ]
