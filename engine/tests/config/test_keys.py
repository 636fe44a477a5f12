"""The schema holds the default, the type and the meaning of each key; a project's train.yaml needs only what it changes."""

import dataclasses
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from train_anywhere.config.command.compose import compose
from train_anywhere.config.flat import flatten
from train_anywhere.config.keys import defaults, meanings
from train_anywhere.config.open_groups import OpenSection
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import field_types
from train_anywhere.testing.projects import copy_project

OLD = Path(__file__).with_name("files") / "train_of_135_keys.yaml"
"""A train.yaml of the time when it had to list every key."""

FROM_FILES = ("cluster.name", "cluster.scheduler")
"""Keys that each preset sets."""


def keys(cls: type, path: str = "") -> Iterator[str]:
    for name, hint in field_types(cls).items():
        plain = (
            isinstance(hint, type) and dataclasses.is_dataclass(hint) and not issubclass(hint, OpenSection)
        )
        if plain and name != "container":
            yield from keys(typing.cast(type, hint), f"{path}{name}.")
        elif path or name not in ("task", "data", "model", "optimizer", "schedule", "strategy", "container"):
            yield f"{path}{name}"


def test_each_key_has_a_default_a_type_and_a_meaning() -> None:
    known = {key for key in keys(Config) if key not in FROM_FILES}
    assert len(known) > 130
    assert known - flatten(defaults(Config)).keys() == set()
    assert [key for key in known if not meanings(Config).get(key)] == []


def config(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "src/train.py", *words]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("removed", [(), ("  no_kill: ", "  nodes: ")])
def test_a_train_yaml_of_an_earlier_version_runs_unchanged(tmp_path: Path, removed: tuple[str, ...]) -> None:
    project = copy_project(tmp_path)
    new = config(project, "--cfg", "job").stdout
    lines = OLD.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not removed or not line.startswith(removed)]
    assert len(lines) - len(kept) == len(removed)
    (project / "configs" / "train.yaml").write_text("".join(kept))
    assert yaml.safe_load(config(project, "--cfg", "job").stdout) == yaml.safe_load(new) != {}
    assert config(project, "--cfg", "job").stdout == new
    assert config(project, "--help").stdout.count("  # ") > 130
    shown = config(project, "dry_run=true", "trainer.nodes=1", "cluster.no_kill=false")
    assert shown.returncode == 0 and "210 in 15 epochs" in shown.stdout, shown.stderr
    done = config(project, "trainer.max_steps=2", "model=mlp")
    assert done.returncode == 0, done.stderr


def test_a_value_of_the_project_is_above_the_default_and_below_a_preset(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    with (project / "configs" / "train.yaml").open("a") as file:
        file.write("trainer: {max_epochs: 3}\ncluster: {gpu_request: none, cpus_per_task: 5}\n")
    tree = yaml.safe_load(config(project, "--cfg", "job", "cluster=neuron", "trainer.nodes=4").stdout)
    trainer, cluster = tree["trainer"], tree["cluster"]
    assert (trainer["max_epochs"], trainer["nodes"], trainer["devices"]) == (3, 4, "auto")
    assert (cluster["gpu_request"], cluster["cpus_per_task"]) == ("gres", 5)
    refused = config(project, "trainer.max_epoch=3", "dry_run=true")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Did you mean 'trainer.max_epochs'?" in refused.stderr


def test_defaults_are_not_shared(tmp_path: Path) -> None:
    compose(["cluster.setup=[a]"])["cluster"]["modules"].append("x")
    assert compose([])["cluster"]["modules"] == [] == defaults(Config)["cluster"]["setup"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainer:\nfeatures:\n", ""),
        ("trainer: []\n", "error: trainer='[]' is not a section of keys."),
        ("cluster: {setup: {a: 1}}\n", "cluster.setup='{'a': 1}' is not a list"),
        ("trainer: {max_epoch: 3}\n", "Did you mean 'trainer.max_epochs'?"),
    ],
)
def test_sections_of_the_project(tmp_path: Path, text: str, says: str) -> None:
    project = copy_project(tmp_path)
    with (project / "configs" / "train.yaml").open("a") as file:
        file.write(text)
    done = config(project, "dry_run=true")
    assert done.returncode == (2 if says else 0), done.stderr
    assert says in done.stderr and (says or "210 in 15 epochs" in done.stdout)
