"""The schema has default, type and meaning of each key. A train.yaml needs only its changes."""

import dataclasses
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tools.testing.projects import copy_project
from train_anywhere.config.command.compose import compose
from train_anywhere.config.keys import OpenSection, defaults, flatten, key_fields, meanings
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import field_types, section_class
from train_anywhere.files import ROOT

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


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def project(copied: Path) -> Path:
    """A copy of this project, with its files in configs/."""
    shutil.rmtree(copied / "configs")
    shutil.copytree(ROOT / "configs", copied / "configs", ignore=shutil.ignore_patterns("local"))
    return copied


def config(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "src/train.py", *words]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("removed", [(), ("  no_kill: ", "  nodes: ")])
def test_a_train_yaml_of_an_earlier_version_runs_unchanged(project: Path, removed: tuple[str, ...]) -> None:
    new = config(project, "--cfg", "job").stdout.replace("train: src.train.train", "train: null")
    lines = OLD.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not removed or not line.startswith(removed)]
    assert len(lines) - len(kept) == len(removed)
    (project / "configs" / "train.yaml").write_text("".join(kept))
    shown = config(project, "--cfg", "job").stdout
    assert shown == new and yaml.safe_load(new) != {}
    if removed:
        return
    assert config(project, "--help").stdout.count("  # ") > 130
    shown = config(project, "dry_run=true", "trainer.nodes=1", "cluster.no_kill=false")
    assert shown.returncode == 0 and "195 in 15 epochs" in shown.stdout, shown.stderr
    done = config(project, "trainer.max_steps=2", "model=mlp")
    assert done.returncode == 0, done.stderr


def test_a_value_of_the_project_is_above_the_default_and_below_a_preset(project: Path) -> None:
    with (project / "configs" / "train.yaml").open("a") as file:
        file.write("trainer: {max_epochs: 3}\ncluster: {gpu_request: none, cpus_per_task: 5}\n")
    tree = yaml.safe_load(config(project, "--cfg", "job", "cluster=neuron", "trainer.nodes=4").stdout)
    trainer, cluster = tree["trainer"], tree["cluster"]
    assert (trainer["max_epochs"], trainer["nodes"], trainer["devices"]) == (3, 4, "auto")
    assert (cluster["gpu_request"], cluster["cpus_per_task"]) == ("gres", 5)
    refused = config(project, "trainer.max_epoch=3", "dry_run=true")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Did you mean 'trainer.max_epochs'?" in refused.stderr


def test_defaults_are_not_shared() -> None:
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
def test_sections_of_the_project(project: Path, text: str, says: str) -> None:
    with (project / "configs" / "train.yaml").open("a") as file:
        file.write(text)
    done = config(project, "dry_run=true")
    assert done.returncode == (2 if says else 0), done.stderr
    assert says in done.stderr and (says or "195 in 15 epochs" in done.stdout)


@pytest.mark.parametrize(
    "file",
    [
        *("optimizer/sgd", "optimizer/adamw", "schedule/constant", "schedule/cosine", "schedule/step"),
        *("strategy/auto", "strategy/ddp", "strategy/horovod", "strategy/fsdp", "container/apptainer"),
        *("optimizer/custom", "schedule/custom", "data/digits", "model/mlp", "task/regression"),
    ],
)
def test_keys_that_a_choice_file_does_not_have_get_the_defaults_of_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """A newer engine adds keys to the class of a choice, which an earlier file does not have."""
    group, _, choice = file.partition("/")
    configs = shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setattr("train_anywhere.config.command.compose.CONFIGS", configs)
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


def test_a_choice_that_inherits_keeps_the_inherited_values(project: Path) -> None:
    (project / "configs" / "optimizer" / "mine.yaml").write_text("defaults: [sgd, _self_]\nmomentum: 0.5\n")
    (project / "configs" / "optimizer" / "sgd.yaml").write_text("name: sgd\nlr: 0.7\n")
    tree = yaml.safe_load(config(project, "--cfg", "job", "optimizer=mine").stdout)["optimizer"]
    assert tree["lr"] == 0.7 and tree["momentum"] == 0.5 and tree["nesterov"] is False
    shown = config(project, "optimizer=mine", "dry_run=true")
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("file", ["train.yaml", "experiment/mine.yaml", "cluster/slurm.yaml"])
def test_a_removed_value_in_a_file_has_the_message_of_the_command_line(project: Path, file: str) -> None:
    path = project / "configs" / file
    before = path.read_text() if path.exists() else "# @package _global_\n"
    path.write_text(f"{before}\ntrainer: {{detect_nan: replay}}\n")
    group, _, choice = file.removesuffix(".yaml").rpartition("/")
    done = config(project, "dry_run=true", *([f"{group}={choice}"] if group else []))
    typed = config(project, "dry_run=true", "trainer.detect_nan=replay")
    assert done.returncode == typed.returncode == 2
    assert done.stderr == typed.stderr
    assert done.stderr.count("trainer.detect_nan=replay is not available: use trainer.detect_nan=stop") == 1
