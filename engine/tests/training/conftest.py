"""Fixtures for tests of strategies."""

from collections.abc import Callable

import numpy as np
import pytest

from tools.testing.weights import final_weights


@pytest.fixture(scope="module")
def single(train, tmp_path_factory) -> Callable[..., dict[str, np.ndarray]]:
    """Return the weights that one process trains with some words, once for each."""
    known: dict[tuple[str, ...], dict[str, np.ndarray]] = {}

    def weights(*words: str) -> dict[str, np.ndarray]:
        if words not in known:
            folder = tmp_path_factory.mktemp("single")
            done = train(*words, "strategy=single", f"paths.results={folder}")
            assert done.returncode == 0, done.stderr
            known[words] = final_weights(folder / "latest")
        return known[words]

    return weights
