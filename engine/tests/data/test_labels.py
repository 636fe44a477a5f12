"""Data that do not suit the classification: one message before the training, in both frameworks."""

import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT

MESSAGES = {
    "large": "labels are int64 [64] from 0 to 99; use class numbers: whole numbers (int64) [rows] from 0 to 2, for 3 classes",
    "negative": "labels are int64 [64] from -1 to 1; use class numbers",
    "floats": "labels are float32 [64] from 0.0 to 2.0; use class numbers",
    "one_hot": "One-hot labels: use labels.argmax(-1).",
    "column": "labels are int64 [64, 1] from 0 to 2; use class numbers",
    "complex": "labels are complex64 [64]; use class numbers",
    "texts": "labels are <U3 [64]; use class numbers",
}


@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("labels", ["small", *MESSAGES])
def test_labels_that_are_no_class_numbers(tmp_path: Path, framework: str, labels: str) -> None:
    words = [f"framework={framework}", "data._target_=engine.tests.data.odd_labels.open_data"]
    words += [f"data.labels={labels}", "model=mlp", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    call = [sys.executable, str(ROOT / "src" / "train.py"), *words, f"paths.results={tmp_path}"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    if labels == "small":
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode in (1, 2) and MESSAGES[labels] in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert sum("labels are" in line for line in done.stderr.splitlines()) == 1
