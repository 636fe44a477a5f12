"""The schema has default, type and meaning of each key. A train.yaml needs only its changes."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from train_anywhere.config.choices import Sgd
from train_anywhere.config.command.compose import compose
from train_anywhere.config.keys import defaults, key_fields
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import field_types, section_class
from train_anywhere.errors import ConfigError

OLD = Path(__file__).with_name("files") / "train_of_135_keys.yaml"
"""A train.yaml of the time when it had to list every key."""


@pytest.mark.parametrize("removed", [(), ("  no_kill: ", "  nodes: ")])
def test_a_train_yaml_of_an_earlier_version_stays_valid(configs: Path, removed: tuple[str, ...]) -> None:
    new = {**compose([]), "train": None}
    lines = OLD.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not removed or not line.startswith(removed)]
    assert len(lines) - len(kept) == len(removed)
    (configs / "train.yaml").write_text("".join(kept))
    assert compose([]) == new and load(compose(["trainer.nodes=1", "cluster.no_kill=false"]))


def add(file: Path, text: str) -> None:
    file.write_text((file.read_text() if file.exists() else "# @package _global_\n") + text)


def test_a_value_of_the_project_is_above_the_default_and_below_a_preset(configs: Path) -> None:
    add(configs / "train.yaml", "trainer: {max_epochs: 3}\ncluster: {gpu_request: none, cpus_per_task: 5}\n")
    tree = compose(["cluster=neuron", "trainer.nodes=4"])
    trainer, cluster = tree["trainer"], tree["cluster"]
    assert (trainer["max_epochs"], trainer["nodes"], trainer["devices"]) == (3, 4, "auto")
    assert (cluster["gpu_request"], cluster["cpus_per_task"]) == ("gres", 5)


def test_defaults_are_not_shared() -> None:
    compose(["cluster.setup=[a]"])["cluster"]["modules"].append("x")
    assert compose([])["cluster"]["modules"] == [] == defaults(Config)["cluster"]["setup"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainer:\nfeatures:\n", ""),
        ("trainer: []\n", "trainer='[]' is not a section of keys."),
        ("cluster: {setup: {a: 1}}\n", "cluster.setup='{'a': 1}' is not a list"),
        ("trainer: {max_epoch: 3}\n", "Did you mean 'trainer.max_epochs'?"),
    ],
)
def test_sections_of_the_project(configs: Path, text: str, says: str) -> None:
    add(configs / "train.yaml", text)
    try:
        load(compose([]))
        found = ""
    except ConfigError as error:
        found = str(error)
    assert says in found and bool(says) == bool(found)


@pytest.mark.parametrize(
    "file",
    [
        *("optimizer/sgd", "optimizer/adamw", "schedule/constant", "schedule/cosine", "schedule/step"),
        *("strategy/auto", "strategy/ddp", "strategy/horovod", "strategy/fsdp", "container/apptainer"),
        *("optimizer/custom", "schedule/custom", "data/digits", "model/mlp", "task/regression"),
    ],
)
def test_keys_that_a_choice_file_does_not_have_get_the_defaults_of_its_class(
    configs: Path, file: str
) -> None:
    """A newer engine adds keys to the class of a choice, which an earlier file does not have."""
    group, _, choice = file.partition("/")
    whole = compose([f"{group}={choice}"])[group]
    cls = section_class(field_types(Config)[group], whole)
    known = defaults(cls)
    path = configs / f"{file}.yaml"
    path.write_text(
        yaml.safe_dump({k: v for k, v in yaml.safe_load(path.read_text()).items() if k not in known})
    )
    short = compose([f"{group}={choice}"])[group]
    assert short == {**whole, **known} and short.keys() == whole.keys()
    assert known.keys() == {f.name for f in dataclasses.fields(cls) if "default" in f.metadata}
    needed = [f.name for f in key_fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
    assert set(needed) - known.keys() <= {"name"}


def test_a_choice_that_inherits_keeps_the_inherited_values(configs: Path) -> None:
    (configs / "optimizer" / "mine.yaml").write_text("defaults: [sgd, _self_]\nmomentum: 0.5\n")
    (configs / "optimizer" / "sgd.yaml").write_text("name: sgd\nlr: 0.7\n")
    optimizer = load(compose(["optimizer=mine"])).optimizer
    assert isinstance(optimizer, Sgd)
    assert (optimizer.lr, optimizer.momentum, optimizer.nesterov) == (0.7, 0.5, False)


@pytest.mark.parametrize("file", ["train.yaml", "experiment/mine.yaml", "cluster/slurm.yaml"])
def test_a_removed_value_in_a_file_has_the_message_of_the_command_line(configs: Path, file: str) -> None:
    add(configs / file, "\ntrainer: {detect_nan: replay}\n")
    group, _, choice = file.removesuffix(".yaml").rpartition("/")
    for words in ([f"{group}={choice}"] if group else [], ["trainer.detect_nan=replay"]):
        with pytest.raises(ConfigError) as refused:
            load(compose(words))
        [problem] = refused.value.problems
        assert problem.startswith("trainer.detect_nan=replay is not available: use trainer.detect_nan=stop")
