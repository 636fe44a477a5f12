"""The example programs on two ranks of this machine end as if they had not been killed."""

import os
import re
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.tests.program.conftest import RUN
from tools.testing.processes import wait_until
from tools.testing.weights import info
from train_anywhere.files import ROOT
from train_anywhere.runs.facts import curves

TWO = ("trainer.devices=2", "trainer.accelerator=cpu", "program.processes=rank")
OWN_LOOP = (
    "program.resume_args=--init_from=resume", "examples/programs/own_loop.py", "--out_dir=$TRAIN_PERSISTENT_CHECKPOINTS",
)  # fmt: skip


def command(results: Path, keys: tuple[str, ...], program: tuple[str, ...]) -> list[str]:
    return [*RUN, f"paths.results={results}", *TWO, *keys, "--", *program]


def needs(package: str) -> pytest.MarkDecorator:
    """Return the mark of a case for which a package must be installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"pip install {package}")


@pytest.mark.parametrize(
    "framework, keys, program",
    [
        ("lightning", OWN_LOOP[:1], OWN_LOOP[1:]),
        pytest.param("lightning", (), ("examples/programs/fabric_loop.py",), marks=pytest.mark.slow),
        pytest.param("keras", (), ("examples/programs/tf_loop.py",), marks=pytest.mark.slow),
        pytest.param("lightning", (), ("examples/programs/hf_trainer.py",), marks=[pytest.mark.slow, needs("transformers")]),
        pytest.param("lightning", (), ("examples/programs/accelerate_loop.py",), marks=[pytest.mark.slow, needs("accelerate")]),
    ],
)  # fmt: skip
def test_killed_and_continued(tmp_path, framework, keys, program):
    """The same weights, and one curve."""
    whole = subprocess.run(
        command(tmp_path / "a", keys, program), capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert whole.returncode == 0, whole.stderr
    weight = re.findall(r"weight ([\d.]+) after 40 steps", whole.stdout)
    assert len(weight) == 2 and weight[0] == weight[1]
    words = command(tmp_path / "b", (*keys, "checkpoint.every_n_seconds=1"), (*program, "--pause", "0.15"))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT)
    folder = tmp_path / "b" / "latest"
    rows = folder / "metrics.csv"
    wait_until(lambda: rows.exists() and len(rows.read_text().splitlines()) >= 14, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    again = [*RUN, f"resume={folder.resolve()}"]
    done = subprocess.run(again, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"weight ([\d.]+) after 40 steps", done.stdout) == weight
    assert len(re.findall(r"starts at step [1-9]", done.stdout)) == 2, done.stdout
    assert [step for step, _ in curves(folder / "metrics.csv")["loss"]] == [*range(1, 41)]
    assert info(folder)["restarts"] == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax") is None, reason="pip install jax")
def test_keras_on_jax(tmp_path: Path) -> None:
    environ = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    for count in (1, 2):
        words = [
            w.replace("=2", f"={count}") for w in command(tmp_path, (), ("examples/programs/keras_jax.py",))
        ]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=300)
        assert done.stdout.count("losses ['2.014014', '0.765207', '0.363163']") == count, done.stderr
