"""Every strategy on this machine gives the weights of one process with the whole batch."""

from pathlib import Path

import pytest

from engine.tests.training.rank_processes import run_ranks
from tools.testing.weights import final_weights, fingerprints, info, largest_difference
from train_anywhere.config.checks.strategy_table import SHARDED_STRATEGIES, SUPPORTED
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.launch.processes import free_port
from train_anywhere.runs.folder import RunDir

SAME = (
    "model=mlp",  # no batch normalisation: each device has its own batch statistics
    "model.hidden=[32]",
    "model.dropout=0",
    "optimizer=sgd",
    "data.batch_size=96",  # of the last batch of an epoch, the second of two devices has only padding
    "trainer.max_epochs=1",
    "trainer.gradient_clip_val=0.5",
    "trainer.accelerator=cpu",
    "monitor.ranks=true",
)
"""Everything whose result must not depend on the number of devices."""

LANGUAGE = (
    "task=language_model", "model=gpt", "model.layers=2", "model.heads=2", "model.kv_heads=1",
    "model.width=16", "data._target_=tests.tasks.sentences.open_sentences", "data.rows=48",
    "data.batch_size=8", "optimizer=sgd", "schedule=constant", "trainer.max_epochs=1",
    "trainer.gradient_clip_val=0.5", "trainer.accelerator=cpu", "monitor.ranks=true",
)  # fmt: skip
"""A language model of rows of different lengths."""

CELLS = [(framework, name) for framework, cells in SUPPORTED.items() for name in cells if name != "single"]
CASES = [
    *((SAME, *cell, ()) for cell in CELLS),
    *((LANGUAGE, *cell, ()) for cell in CELLS),
    (LANGUAGE, "lightning", "fsdp", ("strategy.blocks=[Block]", "model.checkpoint_activations=true")),
    (LANGUAGE, "lightning", "ddp", ("data.batch_size=4", "trainer.accumulate_grad_batches=2")),
    (LANGUAGE, "keras", "mirrored", ("model.checkpoint_activations=true",)),
    (LANGUAGE, "keras", "multiworker_mirrored", ("data.batch_size=4", "trainer.accumulate_grad_batches=2")),
]
"""What is trained, the framework and strategy, and other words of the run on two devices."""


def needs_horovod(require, framework: str, strategy: str) -> None:
    """Skip where it is not built."""
    if strategy == "horovod":
        require(not horovod_problem(framework), "run `make horovod`")


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize(("same", "framework", "strategy", "besides"), CASES)
def test_two_devices_train_as_one(
    same, framework, strategy, besides, train, single, require, tmp_path
) -> None:
    needs_horovod(require, framework, strategy)
    options = (f"framework={framework}", f"strategy={strategy}", "trainer.devices=2", *besides)
    done = train(*same, *options, f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert info(tmp_path / "latest")["strategy"] == strategy
    assert same is SAME or "tokens/s" in done.stdout
    ranks = 2 if SUPPORTED[framework][strategy].several_nodes else 1
    assert done.stdout.count("started by") == ranks
    # ranks that share one state have no whole weights
    assert len(fingerprints(done.stdout)) == (strategy not in SHARDED_STRATEGIES)
    assert largest_difference(final_weights(tmp_path / "latest"), single(*same, options[0])) < 1e-6


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("framework, strategy", CELLS)
def test_a_missing_average_would_show(framework, strategy, make_run, single, require) -> None:
    """The same training without the average ends far away: so the test above would fail."""
    needs_horovod(require, framework, strategy)
    options = (f"framework={framework}", f"strategy={strategy}", "trainer.devices=2")
    _, run = make_run(*SAME, *options)
    ranks = 2 if SUPPORTED[framework][strategy].several_nodes else 1
    output = start_broken(run, ranks, noticed=strategy not in SHARDED_STRATEGIES)
    assert largest_difference(final_weights(run.path), single(*SAME, options[0])) > 1e-3
    if ranks > 1 and strategy not in SHARDED_STRATEGIES:
        assert len(fingerprints(output)) == 2  # ranks see different data, so their weights part


def start_broken(run: RunDir, ranks: int, noticed: bool) -> str:
    """Train with not_averaged.py. Return each rank's output. Ranks notice different weights."""
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    world |= {"MASTER_PORT": str(free_port(ranks))}
    program = [str(Path(__file__).with_name("not_averaged.py")), str(run.path)]
    places = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return "".join(run_ranks([program] * ranks, places, int(noticed)))
