"""A Keras without one of the private names costs one feature, and not the run."""

from pathlib import Path

import pytest

from tools.testing.weights import info

from .test_dropin import BASE, task

NAMES = ("_all_reduce_sum_gradients", "_maybe_symbolic_build", "_learning_rate")


@pytest.mark.parametrize("name", [*NAMES, "+".join(NAMES)])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.quick("1-_all_reduce_sum_gradients+_maybe_symbolic_build+_learning_rate")
def test_a_run_needs_no_private_name(train, name: str, devices: int, tmp_path: Path) -> None:
    options = (task("lacking"), f"task.name={name}", "trainer.max_epochs=1", f"paths.results={tmp_path}")
    done = train(*BASE, *options, "strategy=mirrored", f"trainer.devices={devices}")
    assert "Traceback" not in done.stderr
    if devices == 2 and name.startswith(NAMES[0]):
        assert "averages gradients in another way than its version 3.15" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert info(tmp_path / "latest")["metrics"].keys() >= {"train/loss", "val/loss", "test/loss"}


def test_all_private_names_stand_in_one_module() -> None:
    """At most four, so a new version of Keras is one file to read."""
    from train_anywhere.training.keras import private

    assert NAMES == (private.SUMS_GRADIENTS, private.BUILDS, private.RATE)
