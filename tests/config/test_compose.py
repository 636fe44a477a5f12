"""The groups of the configuration, and the words of a command line as Hydra's grammar reads them."""

import pytest

from src.config.compose import CONFIGS, compose, groups, quoted


def test_groups_are_the_folders() -> None:
    known = groups()
    assert {"data", "model", "optimizer", "schedule", "strategy", "cluster", "experiment"} <= set(known)
    assert known["strategy"] == sorted(p.stem for p in (CONFIGS / "strategy").iterdir())


@pytest.mark.parametrize(
    "value",
    [
        "field=nlp;appl=pytorch",
        "a b",
        "it's",
        'say "hi"',
        "$(touch x) `id`",
        "back\\slash",
        "[open",
        "a,b c;",
        "größe",
        "/home/größe",
        "日本",
    ],
)
def test_values_mean_what_the_shell_hands_over(value: str) -> None:
    tree = compose([quoted(f"cluster.comment={value}")])
    assert tree["cluster"]["comment"] == value


@pytest.mark.parametrize(
    "argument", ["seed=1,2,3", "model.hidden=[1,2]", "resume=null", "--cfg", "name=a-b.c", "+a.b=1"]
)
def test_hydra_grammar_is_left_alone(argument: str) -> None:
    assert quoted(argument) == argument
