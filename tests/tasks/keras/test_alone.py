"""Each file trains by itself, with `model.fit` in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT

START = """
import json
import numpy as np
import keras

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
x = random.normal(size=(256, 8)).astype("float32")
"""
FIT = """
losses = model.fit(*data, validation_data=data if len(data) == 2 else data[0], epochs=5, verbose=0).history
print(json.dumps({name: [values[0], values[-1]] for name, values in losses.items()}))
"""
NETWORK = (
    "network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, 'relu'), keras.layers.Dense(2)])"
)
PROGRAMS = {
    "classification": f"""
from classification import classification

{NETWORK}
model, data = classification(network, "adam"), (x, (x[:, 0] > 0).astype("int64"))
""",
    "regression": f"""
from regression import Regression

{NETWORK}
model, data = Regression(network, keras.optimizers.Adam(0.01)), ({{"columns": x, "targets": x[:, :2]}},)
""",
    "language_model": """
from language_model import LanguageModel

inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "documents")}
network = keras.Model(inputs, keras.layers.Dense(11)(keras.layers.Embedding(11, 16)(inputs["tokens"])))
tokens = (np.arange(7) + random.integers(0, 11, (256, 1))) % 11
data = ({"tokens": tokens, "documents": np.zeros_like(tokens), "bytes": np.full(256, 6.0)},)
model = LanguageModel(network, keras.optimizers.Adam(0.01))
""",
}


@pytest.mark.parametrize("task", PROGRAMS)
def test_it_trains_in_an_empty_folder(task: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "src" / "tasks" / "keras" / f"{task}.py", tmp_path)
    environment = {"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", START + PROGRAMS[task] + FIT]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)
    assert losses["loss"][1] < 0.9 * losses["loss"][0] and losses["val_loss"][1] < losses["val_loss"][0]
