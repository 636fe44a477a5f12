"""Sums become metrics, rows become tokens with their targets, and logits become text."""

import math

import numpy as np
import pytest

from src.tasks.language_model import IGNORED, LanguageModel, continued, shifted
from train_anywhere.errors import DataError


def test_sums_become_metrics() -> None:
    """Of a uniform guess among 256 bytes: 8 bits each, whether a token is one byte or four."""
    task = LanguageModel()
    bytes_alone = task.report("val", [100 * math.log(256), 100.0, 100.0])
    assert bytes_alone == pytest.approx(
        {"val/loss": math.log(256), "val/perplexity": 256, "val/bits_per_byte": 8}
    )
    assert task.measure([100 * math.log(256), 100.0, 400.0])["bits_per_byte"] == pytest.approx(2)
    assert task.measure([1e9, 1.0, 0.0])["bits_per_byte"] == math.inf
    assert math.isfinite(task.measure([1e9, 1.0, 1.0])["perplexity"])


def test_the_speed_is_that_of_tokens() -> None:
    assert LanguageModel().units([3.0, 17.0, 20.0]) == 17


def test_a_target_is_the_next_token_of_the_same_document() -> None:
    batch = {
        "tokens": np.array([[5, 6, 7, 8, 9], [1, 2, 3, 0, 0]]),
        "documents": np.array([[0, 0, 1, 1, 2], [0, 0, 0, -1, -1]]),
        "bytes": np.array([2.0, 2.0]),
    }
    rows = shifted(batch)
    assert rows["tokens"].tolist() == [[5, 6, 7, 8], [1, 2, 3, 0]]
    assert rows["targets"].tolist() == [[6, IGNORED, 8, IGNORED], [2, 3, IGNORED, IGNORED]]
    assert rows["documents"].tolist() == [[0, 0, 1, 1], [0, 0, 0, -1]]


def test_rows_of_another_kind() -> None:
    with pytest.raises(DataError, match="use data=text"):
        shifted((np.zeros((2, 8, 8, 1)), np.zeros(2)))  # type: ignore[arg-type]


def test_text_is_continued() -> None:
    """Counting up by one is the most probable; with a high temperature anything comes, and the seed says what."""

    def predict(tokens: list[int]) -> np.ndarray:
        return np.eye(10, dtype=np.float32)[(tokens[-1] + 1) % 10] * 4

    assert continued(predict, [3], 4, 0.0, 1) == [3, 4, 5, 6, 7]
    one, same, other = (continued(predict, [3], 50, 2.0, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == 51 and {*one} == {*range(10)}


def test_draws_are_as_frequent_as_the_softmax_says() -> None:
    odds = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    drawn = continued(lambda tokens: odds, [0], 4000, 1.0, 0)[1:]
    assert np.bincount(drawn) / 4000 == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
