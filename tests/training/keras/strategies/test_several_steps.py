"""Ranks that make several steps in one call end with the bits of ranks that make one at a time."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from src.distributed.horovod_install import horovod_problem
from src.runs.folder import RunDir
from tests.training.keras.strategies.test_tf_distribute import CONFIG, PROGRAM, new_run, start, weights

SIZE = ("data.batch_size=16", "trainer.log_every_n_steps=20", "trainer.accumulate_grad_batches=1")
Launch = Callable[[RunDir, Path], object]


def with_horovodrun(run: RunDir, out: Path) -> None:
    out.mkdir()
    command = ["horovodrun", "-np", "2", "--gloo", sys.executable, str(PROGRAM), str(run.path), str(out)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(
    params=["multiworker_mirrored", pytest.param("horovod", marks=pytest.mark.horovod)],
)
def strategy(request: pytest.FixtureRequest, require: Callable[..., None]) -> tuple[str, Launch]:
    """One of those with several ranks, and what starts two."""
    if request.param == "horovod":
        require(not horovod_problem("tensorflow"), "run `make horovod`")
        return request.param, with_horovodrun
    return request.param, lambda run, out: start(run, out, 2)


@pytest.mark.slow
def test_the_bits_are_those_of_single_calls(
    strategy: tuple[str, Launch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, launch = strategy
    found: list[dict[str, np.ndarray]] = []
    for longest, most in (("10", 20), ("0", 1)):
        monkeypatch.setenv("LONGEST_S", longest)
        run = new_run(tmp_path / longest, *SIZE, f"strategy={name}", "trainer.devices=2", base=CONFIG)
        launch(run, tmp_path / f"out-{longest}")
        for rank in range(2):
            assert int((tmp_path / f"out-{longest}" / f"{rank}.most").read_text()) == most
            found.append(weights(tmp_path / f"out-{longest}" / f"{rank}.npz"))
    for other in found[1:]:
        assert found[0].keys() == other.keys()
        assert all((found[0][key] == other[key]).all() for key in other)
