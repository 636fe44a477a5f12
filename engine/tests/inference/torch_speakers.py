"""A task that continues tokens, and data whose token is a letter of the alphabet."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from src.data.digits import open_digits
from src.tasks.lightning.classification import Classification
from train_anywhere.data.dataset import Splits


class Letters:
    """Tokens are the numbers of letters."""

    end = 0

    def encode(self, text: str) -> np.ndarray:
        """a is 0."""
        return np.array([ord(letter) - ord("a") for letter in text], np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        """The reverse."""
        return "".join(chr(ord("a") + token) for token in tokens.tolist())


class Speaker(Classification):
    """Says the next letter of the alphabet, whatever the network has learnt."""

    def generate(self, prompt: Sequence[int], count: int, temperature: float, seed: int) -> list[int]:
        """The prompt, and `count` tokens more."""
        assert not self.training and (temperature, seed) == (0.5, 3)
        return [*prompt, *((prompt[-1] + 1 + n) % 26 for n in range(count))]


def open_letters() -> Splits:
    """The digits, and `text` among their facts."""
    splits = open_digits()
    return replace(splits, facts={**splits.facts, "text": Letters()})
