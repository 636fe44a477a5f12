"""Metrics from sums, targets of the tokens of a row, and sampling from logits."""

import math

import numpy as np
import pytest

from src.tasks.language_model import IGNORED, LanguageModel, sample_tokens, split_targets
from train_anywhere.errors import DataError


def test_sums_become_metrics() -> None:
    """A uniform guess among 256 bytes costs 8 bits per byte, whether a token is one byte or four."""
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
    rows = split_targets(batch)
    assert rows["tokens"].tolist() == [[5, 6, 7, 8], [1, 2, 3, 0]]
    assert rows["targets"].tolist() == [[6, IGNORED, 8, IGNORED], [2, 3, IGNORED, IGNORED]]
    assert rows["documents"].tolist() == [[0, 0, 1, 1], [0, 0, 0, -1]]


def test_rows_of_another_kind() -> None:
    with pytest.raises(DataError, match="use data=text"):
        split_targets((np.zeros((2, 8, 8, 1)), np.zeros(2)))  # type: ignore[arg-type]


def test_text_is_continued() -> None:
    """Temperature 0 takes the most probable token; with a high temperature every token occurs, and the seed decides which."""

    def predict(tokens: list[int]) -> np.ndarray:
        return np.eye(10, dtype=np.float32)[(tokens[-1] + 1) % 10] * 4

    assert sample_tokens(predict, [3], 4, 0.0, 1) == [3, 4, 5, 6, 7]
    one, same, other = (sample_tokens(predict, [3], 50, 2.0, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == 51 and {*one} == {*range(10)}


def test_draws_are_as_frequent_as_the_softmax_says() -> None:
    odds = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    drawn = sample_tokens(lambda tokens: odds, [0], 4000, 1.0, 0)[1:]
    assert np.bincount(drawn) / 4000 == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
