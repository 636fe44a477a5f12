"""YAML files that can't be used: one sentence, with file and line."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from train_anywhere.config.command.compose import CONFIGS, install_choice_loader
from train_anywhere.config.command.yaml_files import (
    HEADER,
    choice_problem,
    file_problems,
    parse,
    read_mapping,
    refuse_unusable_files,
)
from train_anywhere.errors import ConfigError, ProjectError

UNUSABLE = {
    b"trainer:\n\tnodes: 1\n": "{}, line 2: a tab can't indent; use spaces.",
    b"a:\n  b: 1\n   c: 2\n": "{}, line 3: mapping values are not allowed here.",
    b"seed: 1\nseed: 2\n": "{}, line 2: found duplicate key seed.",
    b"seed: *a\n": "{}, line 1: found undefined alias 'a'.",
    b"name: gr\xf6\n": "{}, line 1: byte 0xf6 is not UTF-8; save the file as UTF-8.",
    b"a\x00": "{}: special characters are not allowed.",
    b"- a\n": "{} must contain keys, one `key: value` per line, but contains a list.",
    b"": "{} must contain keys, one `key: value` per line, but contains nothing.",
    b"text\n": "{} must contain keys, one `key: value` per line, but contains a single value.",
    b"1: 2\n": "{}: 1 is not a key of the configuration.",
    b"a: 1\n---\nb: 1\n": "{}, line 2: expected a single document in the stream, but found another document.",
}


def test_files_without_keys(tmp_path: Path) -> None:
    path, said = tmp_path / "odd.yaml", {}
    for content in UNUSABLE:
        path.write_bytes(content)
        with pytest.raises(ConfigError) as refused:
            read_mapping(path)
        [said[content]] = refused.value.problems
    assert said == {content: sentence.format(path) for content, sentence in UNUSABLE.items()}


def test_an_experiment_without_its_header_line(tmp_path: Path) -> None:
    path = tmp_path / "experiment" / "mine.yaml"
    path.parent.mkdir()
    path.write_text("trainer:\n  nodes: 1\n")
    assert choice_problem(path) == (
        f"{path} lacks the header line `{HEADER}`: without it its keys go below 'experiment'. Make that its first line."
    )
    path.write_text(f"{HEADER}\ntrainer:\n  nodes: 1\n")
    assert choice_problem(path) is None
    path.write_text("")
    assert "it is empty" in str(choice_problem(path))
    path.write_text(f"{HEADER}\ndefaults: 3\n")
    assert "defaults must be a list" in str(choice_problem(path))


@pytest.mark.parametrize(
    "group, content, lacks",
    [
        ("task", "_target_: a.b\noptimizer: {_target_: a.c}\nschedule: {a: 1}\n", False),
        ("callbacks", "checkpoint: {_target_: a.b}\n", False),
        ("task", "optimizer: {lr: 0.1}\n", True),
        ("callbacks", "trainer: {max_epochs: 3}\n", True),
        ("experiment", "_target_: a.b\n", True),
    ],
)
def test_only_a_file_of_top_level_keys_needs_the_header_line(
    tmp_path: Path, group: str, content: str, lacks: bool
) -> None:
    path = tmp_path / group / "mine.yaml"
    path.parent.mkdir()
    path.write_text(content)
    assert ("lacks the header line" in str(choice_problem(path))) == lacks


def test_every_file_of_the_project_is_fine() -> None:
    paths = [p for p in CONFIGS.rglob("*.yaml") if p.parent != CONFIGS]
    assert len(paths) > 30
    assert [problem for p in paths if (problem := choice_problem(p))] == []


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.yaml")
    with pytest.raises(ProjectError, match=r"mine\.yaml is a pipe or device: put a YAML file in its place"):
        refuse_unusable_files(tmp_path)


def test_an_empty_train_yaml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").touch()
    with pytest.raises(ProjectError, match=r"train\.yaml is empty: restore it"):
        refuse_unusable_files(tmp_path)


def test_a_broken_default_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "train.yaml").write_text("defaults:\n  - model: cnn\n  - override hydra/sweeper: product\n")
    (tmp_path / "model" / "cnn.yaml").write_text("- a\n")
    (problem,) = file_problems(tmp_path)
    assert (
        problem
        == f"{tmp_path}/model/cnn.yaml must contain keys, one `key: value` per line, but contains a list."
    )


def bomb(levels: int = 9) -> str:
    """YAML of few lines that stands for 10**levels values."""
    lines = ["a0: &a0 [" + ", ".join("x" * 10) + "]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def test_aliases_of_aliases_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(bomb())
    with pytest.raises(
        ConfigError, match=r"x.yaml, line 1: its aliases \(\*name\) stand for more than 100,000"
    ):
        read_mapping(tmp_path / "x.yaml")
    with pytest.raises(yaml.YAMLError, match="its aliases"):
        parse(bomb())
    for text in ("a: &a {b: 1}\nc: *a\n", "a: '*'\n", bomb(3)):
        assert parse(text)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    marked = tmp_path / "x.yaml"
    marked.write_bytes("\ufeff# @package _global_\r\na: 1\r\n".encode())
    install_choice_loader()
    assert read_mapping(marked) == {"a": 1}
    loaded = FileConfigSource("test", str(tmp_path)).load_config("x.yaml")
    assert (loaded.header["package"], loaded.config) == ("_global_", {"a": 1})


READ = {
    "account: 1_000": "1_000",
    "account: 1e3": "1e3",
    "account: +5": "+5",
    "account: 012.5": "012.5",
    "account: 08": "08",
    "account: 0123": "0123",
    "time: 30:00": "30:00",
    "time: 24:00:00": "24:00:00",
    "begin: 20:00": "20:00",
    "modules: [gcc, 012]": ["gcc", "012"],
    "seed: 012": "012",
    "seed: 0x1F": "0x1F",
    "seed: 0b11": "0b11",
    f"seed: {'9' * 5000}": "9" * 5000,
    "account: 77": 77,
    "qos: 1.10": "1.10",
    "modules: [3.10, gcc]": ["3.10", "gcc"],
    'account: "0123"': "0123",
    "name: 1_000  # 30:00": "1_000",
    "time: 7-00:00:00": "7-00:00:00",
    'time: "30:00"': "30:00",
    "seed: 1_000": 1000,
    "lr: 1e-3": 0.001,
    "lr: 1.0e-3": 0.001,
    "lr: 1.10": 1.1,
}
"""A line of a file, and the value of its key."""


@pytest.mark.parametrize("line", READ)
def test_values_are_as_typed(tmp_path: Path, line: str) -> None:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    (tmp_path / "mine.yaml").write_text(f"# @package _global_\ncluster:\n  scheduler: slurm\n  {line}\n")
    install_choice_loader()
    loaded: Any = FileConfigSource("test", str(tmp_path)).load_config("mine.yaml").config
    value = loaded.cluster[line.partition(":")[0]]
    assert value == READ[line] and isinstance(READ[line], list | type(value))
