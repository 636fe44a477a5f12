"""Flags and overrides are separated before Hydra reads them."""

import pytest
from hydra.core.config_store import ConfigStore

from train_anywhere.config.command.command_line import (
    SEARCH_KEYS,
    CommandLine,
    split_flags,
    to_hydra_overrides,
)
from train_anywhere.errors import ConfigError


@pytest.mark.parametrize(
    "arguments, overrides, flags",
    [
        (["seed=1", "-m", "name=a"], ["seed=1", "name=a"], ["-m"]),
        (["-m", "seed=1,2"], ["seed=1,2"], ["-m"]),
        (["seed=1", "--cfg", "job", "name=a"], ["seed=1", "name=a"], ["--cfg", "job"]),
        (["--", "seed=1"], ["seed=1"], []),
        ([], [], []),
    ],
)
def test_overrides_may_stand_on_both_sides_of_flags(
    arguments: list[str], overrides: list[str], flags: list[str]
) -> None:
    assert split_flags(arguments) == CommandLine(overrides, flags)


def test_the_keys_of_the_search_are_those_that_hydra_knows() -> None:
    import hydra_plugins.slurm_launcher  # noqa: F401

    node = ConfigStore.instance().load("hydra/sweeper/optuna.yaml").node
    assert {*SEARCH_KEYS} == {str(key) for key in node} - {"_target_"}


SENTENCES = {
    "--nonsense": "'--nonsense' is not a flag of this program; see --help.",
    "--seed=3": "'--seed=3': a key is given without dashes; use seed=3.",
    "--trainer.nodes": "'--trainer.nodes': a key is given without dashes; use trainer.nodes=VALUE.",
    "--nonsense=3": "'--nonsense=3' is not a flag of this program; see --help.",
    "--nodes": "'--nodes': a key is given without dashes; use trainer.nodes=VALUE.",
    "--gpus-per-node=3": "'--gpus-per-node=3': a key is given without dashes; use trainer.devices=3.",
    "--dry-run": "'--dry-run': a key is given without dashes; use dry_run=true.",
    "--cluster": "'--cluster': a key is given without dashes; use cluster=VALUE.",
    "--cfg": "argument --cfg/-c: expected one argument; see --help.",
    "--multirun=3": "argument --multirun/-m: ignored explicit argument '3'; see --help.",
    "--experimental-rerun=x": "--experimental-rerun is not supported; use resume=RUN.",
    "--config-dir=/nowhere": "--config-dir=/nowhere is not a folder.",
    "--package=x": "--package needs --cfg; use --cfg job --package optimizer.",
    "--run": "--run RUNDIR takes no other arguments: a job starts its ranks with it; leave --run out.",
    "name=\udcf6": "the argument 'name=\\udcf6' is not UTF-8; type it in a terminal whose encoding is UTF-8.",
    "hydra.run.dir=/x": "'hydra.run.dir=/x' sets an output folder of Hydra, which this project does not use; use paths.results=DIR.",
}


def test_each_unusable_argument_is_one_sentence() -> None:
    said = {}
    for argument in SENTENCES:
        with pytest.raises(ConfigError) as refused:
            split_flags(["seed=1", argument])
        [said[argument]] = refused.value.problems
    assert said == SENTENCES


def test_flags_and_their_values_among_overrides() -> None:
    with pytest.raises(ConfigError) as refused:
        split_flags(["--gpus", "3", "--dry-run", "seed=1"])
    assert refused.value.problems == [
        "'--gpus': a key is given without dashes; use trainer.devices=VALUE.",
        "'--dry-run': a key is given without dashes; use dry_run=true.",
    ]


@pytest.mark.parametrize(
    "typed, words",
    [
        (["data.batch_size=3", "seed=1"], ["++data.batch_size=3", "seed=1"]),
        (["task._target_=mine.Lit"], ["task=custom", "++task._target_=mine.Lit"]),
        (["task._target_.keras=mine.Lit"], ["task=custom", "++task._target_.keras=mine.Lit"]),
        (["data=mnist", "data._target_=mine.rows"], ["data=mnist", "++data._target_=mine.rows"]),
        (["+callbacks.a._target_=b.c", "~data.dir"], ["+callbacks.a._target_=b.c", "~data.dir"]),
        (["datadir=3", "optimizer=sgd"], ["datadir=3", "optimizer=sgd"]),
        (["task=custom", "++task._target_=mine.Lit"], ["task=custom", "++task._target_=mine.Lit"]),
    ],
)
def test_arguments_of_targets_need_not_be_in_a_file(typed: list[str], words: list[str]) -> None:
    assert to_hydra_overrides(typed) == words
    assert to_hydra_overrides(words) == words
