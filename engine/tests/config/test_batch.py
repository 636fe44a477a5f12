"""One rule for sharing the global batch."""

from train_anywhere.config.checks.contradictions import batch_size_problem


def test_an_uneven_one_names_the_nearest_that_is_even() -> None:
    assert batch_size_problem(96, 4) == ""
    for size, devices, nearest in ((96, 7, 98), (96, 5, 95), (3, 8, 8), (12, 8, 16)):
        assert batch_size_problem(size, devices, "ranks") == (
            f"data.batch_size={size} is the global batch and can't be shared evenly by {devices} ranks; "
            f"use data.batch_size={nearest}."
        )
