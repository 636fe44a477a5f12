"""Numbers of YAML 1.1 in a file are read as typed, or refused with one message."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from train_anywhere.config.command.yaml_files import open_yaml, yaml_sentence

READ = {
    "account: 1_000": "1_000",
    "account: 1e3": "1e3",
    "account: +5": "+5",
    "account: 012.5": "012.5",
    "account: 08": "08",
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

REFUSED = {
    "time: 30:00": "time=30:00 is a number in base 60",
    "time: 24:00:00": "time=24:00:00 is a number in base 60",
    "begin: 20:00": "begin=20:00 is a number in base 60",
    "account: 0123": "account=0123 is the number 83 in YAML: type 83, or write it with quotes",
    "seed: 012": "seed=012 is the number 10",
    "seed: 0x1F": "seed=0x1F is the number 31",
    "seed: 0b11": "seed=0b11 is the number 3",
    "modules: [gcc, 012]": "modules=012 is the number 10",
    f"seed: {'9' * 5000}": "seed is a number of 5,000 digits",
}


def read(folder: Path, line: str) -> Any:
    file = folder / "mine.yaml"
    file.write_text(f"# @package _global_\ncluster:\n  scheduler: slurm\n  {line}\n")
    with open_yaml(str(file)) as opened:
        return OmegaConf.load(opened).cluster[line.partition(":")[0]]


@pytest.mark.parametrize("line", READ)
def test_values_are_as_typed(tmp_path: Path, line: str) -> None:
    value = read(tmp_path, line)
    assert value == READ[line] and isinstance(READ[line], list | type(value))


@pytest.mark.parametrize("line", REFUSED)
def test_numbers_that_nobody_means(tmp_path: Path, line: str) -> None:
    with pytest.raises(yaml.YAMLError) as error:
        read(tmp_path, line)
    sentence = yaml_sentence(error.value)
    assert f"mine.yaml, line 4: cluster.{REFUSED[line]}" in sentence and "\n" not in sentence
