"""Data that do not suit the classification: one message before the training, in both frameworks."""

import numpy as np
import pytest

from train_anywhere.data.dataset import Splits, check_labels
from train_anywhere.errors import DataError

GOOD = np.arange(96) % 3
CASES = {
    "small": (GOOD.astype(np.uint8), ""),
    "large": (
        np.where(np.arange(96) == 5, 99, GOOD),
        "labels are int64 [64] from 0 to 99; use class numbers: whole numbers (int64) [rows] from 0 to 2, for 3 classes",
    ),
    "negative": (GOOD - 1, "labels are int64 [64] from -1 to 1; use class numbers"),
    "floats": (GOOD.astype(np.float32), "labels are float32 [64] from 0.0 to 2.0; use class numbers"),
    "one_hot": (np.eye(3, dtype=np.float32)[GOOD], "One-hot labels: use labels.argmax(-1)."),
    "column": (GOOD[:, None], "labels are int64 [64, 1] from 0 to 2; use class numbers"),
    "complex": (GOOD.astype(np.complex64), "labels are complex64 [64]; use class numbers"),
    "texts": (np.array(["cat", "dog", "cow"])[GOOD], "labels are <U3 [64]; use class numbers"),
}


class Rows:
    """Images of 8x8 pixels, and labels."""

    def __init__(self, labels: np.ndarray) -> None:
        self.images, self.labels = np.zeros((96, 8, 8, 1), np.float32), labels

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
        return self.images[indices], self.labels[indices]


def open_data(labels: str) -> Splits:
    rows = Rows(CASES[labels][0])
    return Splits(rows, rows, facts={"shape": (8, 8, 1), "classes": 3, "outputs": 3})


@pytest.mark.parametrize("labels", CASES)
def test_labels_that_are_no_class_numbers(labels: str) -> None:
    try:
        check_labels(open_data(labels))
    except DataError as error:
        assert CASES[labels][1] and CASES[labels][1] in str(error)
    else:
        assert labels == "small"


@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("labels", ["small", "large"])
def test_one_message_before_the_training(train, tmp_path, framework: str, labels: str) -> None:
    words = [f"framework={framework}", f"data._target_={__name__}.open_data", f"data.labels={labels}"]
    done = train(*words, "model=mlp", "trainer.max_epochs=1", f"paths.results={tmp_path}")
    assert done.returncode in ((0,) if labels == "small" else (1, 2)), done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert sum("labels are" in line for line in done.stderr.splitlines()) == (labels == "large")
