"""Keys typed by another name: the message has the key that is meant."""

import pytest

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.diagnose import diagnose
from train_anywhere.config.keys import flatten
from train_anywhere.config.load import load
from train_anywhere.config.other_names import OTHER_NAMES, OTHER_WAYS, keys_meant
from train_anywhere.errors import ConfigError

MEANT = {
    "gpus": ["trainer.devices"],
    "trainer.gpus": ["trainer.devices"],
    "cluster.ntasks-per-node": ["trainer.devices"],
    "nodes": ["trainer.nodes"],
    "cluster.nodes": ["trainer.nodes"],
    "trainer.epochs": ["trainer.max_epochs"],
    "time": ["cluster.time"],
    "sbatch.time": ["cluster.time"],
    "Account": ["cluster.account"],
    "lr": ["optimizer.lr"],
    "trainer.batch_size": ["data.batch_size"],
    "trainer.dry_run": ["dry_run"],
    "mode": ["trainer.early_stopping.mode", "checkpoint.mode"],
    "trainer.steps_per_epoch": ["trainer.limit_train_batches"],
    "validation_freq": ["trainer.check_val_every_n_epoch"],
    "trainer.name": [],
    "nonsense": [],
    "cluster.site.nodes[0].gpu": [],
}


@pytest.fixture(scope="session")
def tree() -> dict[str, object]:
    return compose([])


@pytest.mark.parametrize("word", MEANT)
def test_the_keys_that_are_meant(word: str, tree: dict[str, object]) -> None:
    assert keys_meant(word, tree) == MEANT[word]


def test_other_names_lead_to_keys_and_are_none(tree: dict[str, object]) -> None:
    keys = {*flatten(tree), *tree}
    assert {*OTHER_NAMES} <= keys
    names = " ".join(OTHER_NAMES.values()).split()
    assert len({*names}) == len(names)
    assert not {*names} & {key.rpartition(".")[2] for key in keys}


def test_a_key_of_the_command_line_and_of_a_file(tree: dict[str, object]) -> None:
    said = "is not a key of the configuration. Did you mean"
    refused = diagnose(["trainer.gpus=4", "batch_size=3"], ConfigError("x"))
    assert refused.problems[1:] == [
        f"'trainer.gpus' {said} 'trainer.devices'?",
        f"'batch_size' {said} 'data.batch_size'?",
    ]
    with pytest.raises(ConfigError) as error:
        load(tree | {"lr": 3, "trainer": {**tree["trainer"], "epochs": 2}})  # type: ignore[dict-item]
    assert error.value.problems == [
        f"'lr' {said} 'optimizer.lr'?",
        f"'trainer.epochs' {said} 'trainer.max_epochs'?",
    ]


@pytest.mark.parametrize("word", OTHER_WAYS)
def test_arguments_of_fit_that_are_no_key_have_another_way(word: str, tree: dict[str, object]) -> None:
    for key in (word, f"trainer.{word}"):
        said = diagnose([f"{key}=1"], ConfigError("x")).problems
        assert said[-1] == f"'{key}' is not a key of the configuration; {OTHER_WAYS[word]}."
