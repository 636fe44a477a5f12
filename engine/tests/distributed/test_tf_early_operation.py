"""Operations that start TensorFlow's devices before MultiWorkerMirroredStrategy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.new_process]


def test_a_training_imports_its_task_after_the_strategy(tmp_path: Path) -> None:
    """TensorFlow refuses operations before the strategy; one in the user's module comes after it."""
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
