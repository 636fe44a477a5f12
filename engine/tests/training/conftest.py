"""Fixtures for tests of strategies."""

from collections.abc import Callable

import numpy as np
import pytest

from tools.testing.weights import final_weights


@pytest.fixture(scope="module")
def single(request, train, tmp_path_factory) -> Callable[[str], dict[str, np.ndarray]]:
    """Return the weights of one process with the module's SAME, by framework."""
    known: dict[str, dict[str, np.ndarray]] = {}

    def weights(framework: str) -> dict[str, np.ndarray]:
        if framework not in known:
            folder = tmp_path_factory.mktemp(framework)
            done = train(
                *request.module.SAME, f"framework={framework}", "strategy=single", f"paths.results={folder}"
            )
            assert done.returncode == 0, done.stderr
            known[framework] = final_weights(folder / "latest")
        return known[framework]

    return weights
