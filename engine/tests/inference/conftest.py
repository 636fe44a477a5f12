"""Runs that have trained a little in this process, and evaluate.py as a user types it."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from train_anywhere.commands import evaluate
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.topology import Topology
from train_anywhere.job.rank_process import RankProcess, Stop
from train_anywhere.launch.local_run import make_run
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

SHORT = (
    "model=mlp", "model.hidden=[8]", "trainer.max_epochs=2", "trainer.accelerator=cpu", "monitor.progress=none", "checkpoint.local=null",
)  # fmt: skip

Trained = Callable[..., RunDir]
Evaluate = Callable[..., tuple[int, str, str]]


def train_a_run(folder: Path, *overrides: str) -> RunDir:
    """A run below a folder, trained by these overrides."""
    words = to_hydra_overrides(overrides)
    config = load(compose([*words, f"paths.results={folder}"]))
    run = make_run(config, words, local_layout(config))
    outcome = importlib.import_module(f"train_anywhere.training.{config.framework}.run").train(
        config, RankProcess(run, Topology(), Stop(), RunRecorder(run))
    )
    RunRecorder(run).record_end(outcome)
    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    """One digits run of each framework. Tests may only add files with new names."""
    folder = tmp_path_factory.mktemp("trained")
    return {f: train_a_run(folder, f"framework={f}", *SHORT) for f in ("lightning", "keras")}


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """`trained("seed=3")`: a run of the test's own."""
    return lambda *overrides: train_a_run(tmp_path / "results", *overrides)


@pytest.fixture
def evaluated(capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """`evaluated(run.path, "--split", "val")`: exit code, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = evaluate.main([str(word) for word in words])
        return (code, *capsys.readouterr())

    return run
