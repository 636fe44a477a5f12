"""A few random Keras programs are compared with plain Keras. `run.py` compares more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.tests.differential.keras.specs import PLAIN, count_draws, draw, smaller
from engine.tests.differential.table import read_rows

RUN = Path(__file__).with_name("run.py")


def test_programs_equal_keras_alone() -> None:
    """A separate process that forks before TensorFlow has started."""
    command = [sys.executable, str(RUN), "--programs", "4", "--seed", "24"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "{'programs': 4, 'with differences': 0" in done.stdout


@pytest.mark.slow
def test_stopped_programs_resume_bit_for_bit() -> None:
    command = [sys.executable, str(RUN), "--programs", "4", "--seed", "40", "--stops"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "drawn"), [(90185, {"own": "train_step"}), (8108, {"layers": "regularizer"})]
)
def test_compiled_metrics_are_built_on_two_devices(seed: int, drawn: dict[str, str]) -> None:
    """As `fit` does with MirroredStrategy."""
    spec = draw(seed)
    assert spec["weighted"] and all(value in spec[key] for key, value in drawn.items())
    command = [sys.executable, str(RUN), "--programs", "1", "--seed", str(seed), "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_programs_are_repeatable_json_and_shrink_to_the_plain_one() -> None:
    from collections import Counter

    counts: Counter[str] = Counter()
    for seed in range(400):
        spec = draw(seed)
        assert spec == draw(seed) == json.loads(json.dumps(spec))
        count_draws(spec, counts)
    assert [name for name, number in counts.items() if number < 20] == []
    assert not [*smaller(PLAIN)]


def test_the_table_names_the_intended_differences() -> None:
    rows = read_rows("keras")
    assert {"keras-order", "keras-averages"} <= rows.keys() and len(rows) <= 4
