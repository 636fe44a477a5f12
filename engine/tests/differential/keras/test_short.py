"""A few random Keras programs are compared with plain Keras. `../run.py` compares more."""

import json

import pytest

from engine.tests.differential.forks import compare
from engine.tests.differential.keras.specs import count_draws, draw
from engine.tests.differential.table import read_rows

CHOSEN = {
    47: "a regularizer, a PyDataset in another order in each epoch, a callback that adds to the logs, a scheduled rate",
    705: "a callback ends the run at the end of an epoch, a step returns nested metrics",
    1455: "averaged weights, ReduceLROnPlateau, a step returns the loss of its batch",
    1555: "two outputs, several steps in a call, only a layer adds a loss",
    1735: "own compute_loss, metrics of both kinds, class weights, a callback with state that ends the run in a validation",
    530019: "two outputs, a shuffled tf.data with as many steps as batches",
    530067: "EarlyStopping restores the best weights at the end",
    33: "a generator, a step returns values under the names of metrics",
    42: "a step returns metrics, the loss of its batch and a variable",
    161: "a step returns what compute_metrics does",
    752: "a callback ends the run within an epoch",
}
"""Programs by seed, and what they have that those before do not."""


@pytest.mark.parametrize("seeds", [[*CHOSEN][:7], pytest.param([*CHOSEN][7:], marks=pytest.mark.slow)])
def test_programs_equal_keras_alone(seeds: list[int]) -> None:
    found = compare("keras", "--programs", "0", "--also", *map(str, seeds))
    assert f" {len(seeds)} equal, 0 refused" in found


@pytest.mark.parametrize(
    ("programs", "also"), [("0", (530014, 530036)), pytest.param("4", (87,), marks=pytest.mark.slow)]
)
def test_stopped_programs_resume_bit_for_bit(programs: str, also: tuple[int, ...]) -> None:
    """Seed 530014 is stopped within the last call of an epoch, 530036 weighs the losses of its outputs in calls of several steps."""
    compare("keras", "--stops", "--programs", programs, "--seed", "40", "--also", *map(str, also))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "drawn"),
    [
        (9101, {"own": "train_step", "returns": "mixed"}),
        (90185, {"own": "train_step", "weighted": "mse"}),
        (8108, {"layers": "regularizer", "weighted": "mse"}),
        (168, {"own": "train_step", "returns": "nested"}),
    ],
)
def test_metrics_on_two_devices_are_those_of_one(seed: int, drawn: dict[str, str]) -> None:
    """Compiled metrics are built as `fit` does with MirroredStrategy. A stopped run goes on with the sums of both devices."""
    spec = draw(seed)
    assert all(value in spec[key] for key, value in drawn.items())
    compare("keras", "--programs", "1", "--seed", str(seed), "--ranks", "2", "--stops")


def test_programs_are_repeatable_json() -> None:
    from collections import Counter

    counts: Counter[str] = Counter()
    for seed in range(400):
        spec = draw(seed)
        assert spec == draw(seed) == json.loads(json.dumps(spec))
        count_draws(spec, counts)
    assert [name for name, number in counts.items() if number < 20] == []


def test_the_table_names_the_intended_differences() -> None:
    rows = read_rows("keras")
    assert "keras-order" in rows and len(rows) <= 3
