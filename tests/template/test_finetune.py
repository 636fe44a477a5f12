"""examples/finetune/ trains, resumes with the same bits, and exports readable models."""

import json
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.testing.weights import final_weights, info, largest_difference
from train_anywhere.files import ROOT
from train_anywhere.testing.plugin import Command

if not (ROOT / "examples/finetune").is_dir():
    pytest.skip("this project has no examples/finetune", allow_module_level=True)

from tests.template.test_examples import commands

NEEDS = {
    "image_classifier": ("timm",),
    "text_classifier": ("transformers", "peft", "safetensors"),
    "language_model": ("transformers", "peft", "safetensors"),
    "keras_transfer": (),
}
"""Examples, and the packages that each needs."""


def require_packages(name: str) -> None:
    missing = [package for package in NEEDS[name] if not find_spec(package)]
    if missing:
        install = "pip install --no-deps -r requirements/locks/finetune.txt"
        pytest.skip(f"needs {', '.join(missing)}: {install}")


def run(train: Command, name: str, folder: Path, *more: str) -> Path:
    """Run the commands of an example for three epochs and return the folder of the last run."""
    run = Path()
    for number, command in enumerate(commands(f"finetune/{name}")):
        words = [w.replace("results/latest", str(run)) for w in shlex.split(command)[2:]]
        done = train(
            *words, "trainer.max_epochs=3", f"paths.results={folder / str(number)}", *more, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        run = (folder / str(number) / "latest").resolve()
    return run


def evaluate(*words: object) -> None:
    command = [sys.executable, str(ROOT / "src/evaluate.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_resumes_with_the_same_bits(name: str, train: Command, tmp_path: Path) -> None:
    require_packages(name)
    whole = run(train, name, tmp_path)
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(again / "checkpoints" / (again / "checkpoints/newest").read_text().strip())
    state = json.loads((again / "run.json").read_text()) | {"state": "preempted"}
    (again / "run.json").write_text(json.dumps(state))
    done = train(f"resume={again}", "trust=true", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = final_weights(whole), final_weights(again)
    assert largest_difference(before, after) == 0
    assert info(again)["metrics"] == info(whole)["metrics"]
    evaluate(whole)
    {"image_classifier": timm_loads, "keras_transfer": keras_loads}.get(name, transformers_loads)(
        whole, tmp_path
    )


def timm_loads(run: Path, folder: Path) -> None:
    import timm
    import torch

    from examples.finetune.image_classifier import ARCHITECTURE
    from train_anywhere.inference import load_model

    evaluate(run, "--export", "safetensors", "--to", folder / "w.safetensors")
    images = torch.randn(3, 1, 8, 8)
    loaded = timm.create_model(checkpoint_path=str(folder / "w.safetensors"), **ARCHITECTURE).eval()
    network: Any = load_model(run, trust=True).network
    torch.testing.assert_close(loaded(images), network(images))


def transformers_loads(run: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    from train_anywhere.inference import load_model

    own: Any = load_model(run, trust=True).network
    own.lora_adapters.merge()
    own.model.save_pretrained(folder / "hf")
    text = hasattr(own, "tokenizer")
    kind = AutoModelForSequenceClassification if text else AutoModelForCausalLM
    loaded = kind.from_pretrained(folder / "hf").eval()
    tokens = torch.arange(4, 12)[None]
    torch.testing.assert_close(loaded(tokens).logits, own.model(tokens).logits)
    if text:
        own.tokenizer.save_pretrained(folder / "hf")
        tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
        assert tokenizer("the film was fine")["input_ids"] == own.tokenizer("the film was fine")["input_ids"]


def keras_loads(run: Path, folder: Path) -> None:
    import keras

    from train_anywhere.inference import load_model

    evaluate(run, "--export", "keras", "--to", folder / "w.keras")
    images = np.random.default_rng(1).normal(size=(3, 8, 8, 1)).astype(np.float32)
    loaded = keras.saving.load_model(folder / "w.keras", compile=False)
    network: Any = load_model(run, trust=True).network
    np.testing.assert_allclose(
        loaded.predict(images, verbose=0), network.predict(images, verbose=0), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_trains_on_two_ranks(name: str, train: Command, tmp_path: Path) -> None:
    require_packages(name)
    strategy = "mirrored" if name.startswith("keras") else "ddp"
    one = run(train, name, tmp_path / "one")
    two = run(
        train, name, tmp_path / "two", f"strategy={strategy}", "trainer.devices=2", "trainer.accelerator=cpu"
    )
    first, second = (info(folder)["metrics"] for folder in (one, two))
    loss = next(key for key in ("val_loss", "val/loss") if key in first)
    assert second[loss] == pytest.approx(first[loss], rel=0.3)
