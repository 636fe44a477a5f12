"""One rule for sharing the global batch."""

import pytest

from src.config.batch import uneven_batch


def test_an_even_batch_has_nothing_wrong() -> None:
    assert uneven_batch(96, 4) == ""


@pytest.mark.parametrize(("size", "devices", "nearest"), [(96, 7, 98), (96, 5, 95), (3, 8, 8), (12, 8, 16)])
def test_an_uneven_one_names_the_nearest_that_is_even(size: int, devices: int, nearest: int) -> None:
    assert uneven_batch(size, devices, "ranks") == (
        f"data.batch_size={size} is the global batch and can't be shared evenly by {devices} ranks; "
        f"use data.batch_size={nearest}."
    )
