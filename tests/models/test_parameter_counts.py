"""A model of the same name has the same number of trainable parameters in every framework."""

import json
import subprocess
import sys

import pytest

from train_anywhere.files import ROOT
from train_anywhere.testing.plugin import FRAMEWORKS

COUNT = """
import json
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from src.models.{side} import count_parameters
from train_anywhere.training.plan import build_network
counts = {{}}
for model in ("mlp", "cnn", "resnet18", "resnet18 model.small_images=true", "resnet50"):
    for channels in (1, 3):
        config = load(compose(["framework={side}", "model=" + model.split()[0], *model.split()[1:]]))
        facts = {{"shape": (28, 28, channels), "outputs": 10}}
        counts[f"{{model}} {{channels}}"] = count_parameters(build_network(config, facts))
for numbers in ("", "model.kv_heads=1", "model.hidden=100 model.layers=1"):
    config = load(compose(["framework={side}", "task=language_model", "model=gpt", *numbers.split()]))
    counts[f"gpt {{numbers}}"] = count_parameters(build_network(config, {{"vocabulary": 257, "length": 16}}))
print(json.dumps(counts))
"""


def counts(side: str) -> dict[str, int]:
    """Count in a separate process, because the two frameworks are never imported together."""
    command = [sys.executable, "-c", COUNT.format(side=side)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def known() -> dict[str, int]:
    return counts(FRAMEWORKS[-1])


@pytest.mark.slow
def test_lightning_and_keras_agree(known: dict[str, int]) -> None:
    assert counts("lightning") == known


@pytest.mark.slow
def test_resnets_are_the_published_ones(known: dict[str, int]) -> None:
    """The published models have 11,689,512 and 25,557,032 parameters with 1000 classes."""
    assert known["resnet18 3"] == 11_689_512 - 990 * (512 + 1)
    assert known["resnet50 3"] == 25_557_032 - 990 * (2048 + 1)
