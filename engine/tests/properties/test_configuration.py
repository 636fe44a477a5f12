"""Any value in any place of the configuration is accepted, or refused by name."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import SCALARS, bounded, composed
from train_anywhere.config.keys import flatten, unflatten
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import build
from train_anywhere.errors import ConfigError

KEYS = st.text(max_size=5) | st.integers(0, 3) | st.none() | st.booleans()
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
TREES = (
    "cluster=slurm", "data=mnist", "data=synthetic", "model=mlp", "optimizer=sgd", "schedule=step", "strategy=horovod",
)  # fmt: skip


def places() -> list[tuple[str, ...]]:
    """The keys of the trees, some sections, and keys that there are not."""
    known = {tuple(key.split(".")) for tree in TREES for key in flatten(composed(tree))}
    sections = [("cluster",), ("data",), ("model",), ("trainer", "early_stopping")]
    return [*sorted(known), ("cluster", "site", "nodes"), *sections, ("new", "key")]


PLACES = st.deferred(lambda: st.sampled_from(places()))  # not composed when tests are collected


def with_value(tree: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of the tree with another value in one place."""
    changed = section = copy.deepcopy(tree)
    for key in place[:-1]:
        section = section.setdefault(key, {})
    section[place[-1]] = value
    return changed


@bounded(600)
@given(st.sampled_from(TREES), PLACES, ANYTHING)
def test_any_value_in_any_place_is_accepted_or_named(chosen: str, place: tuple[str, ...], value: Any) -> None:
    problems: list[str] = []
    made = build(Config, with_value(composed(chosen), place, value), problems)
    assert made is not None or problems  # besides problems, what was made has stand-ins in it
    for problem in problems:
        assert place[0] in problem
        assert not re.search(r"[\n\r]", problem), problem


@bounded(200)
@given(st.sampled_from(TREES), PLACES, ANYTHING)
def test_a_whole_configuration_is_loaded_or_refused(chosen: str, place: tuple[str, ...], value: Any) -> None:
    try:
        load(with_value(composed(chosen), place, value))
    except ConfigError as error:
        assert error.problems and all(error.problems)


@bounded()
@given(ANYTHING)
def test_a_tree_that_is_not_a_configuration_is_refused(tree: Any) -> None:
    with pytest.raises(ConfigError):
        load(tree if isinstance(tree, dict) else {"framework": tree})


LEAVES = SCALARS.filter(lambda v: v == v) | st.lists(st.integers(), max_size=2) | st.just({})
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(
        st.text(max_size=4).filter(lambda k: "." not in k), inner, min_size=1, max_size=3
    ),
    max_leaves=8,
)


@bounded()
@given(st.dictionaries(st.text(max_size=4).filter(lambda k: "." not in k), NESTED, max_size=3))
def test_a_tree_comes_back_from_its_flat_form(tree: dict[str, Any]) -> None:
    assert unflatten(flatten(tree)) == tree
