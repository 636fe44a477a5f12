"""Operations that start TensorFlow's devices before MultiWorkerMirroredStrategy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.new_process]

MESSAGE = "Collective ops must be configured at program startup"
PROGRAM = """
import keras
import tensorflow as tf
{early}
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("created", strategy.num_replicas_in_sync)
"""
REFUSED = [
    "tf.constant(1)", "keras.layers.Dense(1).build((None, 2))", "tf.data.Dataset.range(3)", "tf.config.list_logical_devices()",
]  # fmt: skip
ALLOWED = "keras.utils.set_random_seed(1); tf.random.set_seed(1); tf.config.list_physical_devices()"


@pytest.mark.parametrize("early", [*REFUSED, ALLOWED])
def test_a_program(early: str) -> None:
    one = {"cluster": {"worker": ["127.0.0.1:29671"]}, "task": {"type": "worker", "index": 0}}
    environ = {**os.environ, "TF_CONFIG": json.dumps(one), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", PROGRAM.format(early=early)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert (MESSAGE in done.stderr, "created 1" in done.stdout) == (early != ALLOWED, early == ALLOWED)
    assert f"### `{MESSAGE}`" in (ROOT / "docs/how-to/troubleshooting.md").read_text()


def test_a_training_imports_its_task_after_the_strategy(tmp_path: Path) -> None:
    """The same operation in the user's module is not an error."""
    (tmp_path / "early.py").write_text(
        "import tensorflow as tf\n"
        "SCALE = tf.constant(1.0)\n"
        "from examples.keras_model import make_model, open_data\n"
    )
    words = [
        "framework=keras", "strategy=multiworker_mirrored", "trainer.devices=2", "trainer.accelerator=cpu",
    ]  # fmt: skip
    own = ["task._target_=early.make_model", "data._target_=early.open_data", "data.batch_size=32"]
    short = ["trainer.fast_dev_run=true", f"paths.results={tmp_path / 'results'}"]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, *own, *short]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0 and "val/loss" in done.stdout, done.stderr
