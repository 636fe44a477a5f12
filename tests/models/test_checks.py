"""Sizes of a model that are refused before a run; each message has one that fits."""

import re

import pytest

from src.models.checks import gpt


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(4, 3, 128), (7, 7, 100), (4, 4, 12), (8, 16, 64), (6, 4, 96)]
)
def test_heads_that_do_not_fit_and_what_does(heads: int, kv_heads: int, width: int) -> None:
    numbers = {"heads": heads, "kv_heads": kv_heads, "width": width}
    sentence = gpt(**numbers)
    key, value = re.findall(r"use model\.(\w+)=(\d+)", sentence)[0]
    assert gpt(**{**numbers, key: int(value)}) == ""


def test_numbers_that_fit() -> None:
    assert gpt(heads=4, kv_heads=2, width=128) == gpt(heads=32, kv_heads=32, width=4096) == ""
