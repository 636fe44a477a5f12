"""Every strategy trains a language model of uneven rows to the weights of one process."""

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from engine.tests.chaos.test_ranks import outcome, ranks, start, state, wait_for_checkpoint
from tools.testing.weights import final_weights, info, largest_difference
from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.distributed.packages import horovod_problem

SAME = (
    "task=language_model", "model=gpt", "model.layers=2", "model.heads=2", "model.kv_heads=1",
    "model.width=16", "data._target_=tests.tasks.sentences.open_sentences", "data.rows=48",
    "data.batch_size=8", "optimizer=sgd", "schedule=constant", "trainer.max_epochs=1",
    "trainer.gradient_clip_val=0.5", "trainer.accelerator=cpu",
)  # fmt: skip

CASES = [
    *((framework, name, ()) for framework, cells in SUPPORTED.items() for name in cells if name != "single"),
    ("lightning", "fsdp", ("strategy.blocks=[Block]", "model.checkpoint_activations=true")),
    ("lightning", "ddp", ("data.batch_size=4", "trainer.accumulate_grad_batches=2")),
    ("keras", "mirrored", ("model.checkpoint_activations=true",)),
    ("keras", "multiworker_mirrored", ("data.batch_size=4", "trainer.accumulate_grad_batches=2")),
]


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize(("framework", "strategy", "besides"), CASES)
def test_two_devices_train_as_one(framework, strategy, besides, train, single, require, tmp_path) -> None:
    if strategy == "horovod":
        require(not horovod_problem(framework), "run `make horovod`")
    options = (f"framework={framework}", f"strategy={strategy}", "trainer.devices=2", *besides)
    done = train(*SAME, *options, f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert info(tmp_path / "latest")["strategy"] == strategy
    assert "tokens/s" in done.stdout
    assert largest_difference(final_weights(tmp_path / "latest"), single(framework)) < 1e-6


LONG = (
    *SAME,
    "name=digits",  # where the helpers look for the run
    "optimizer=adamw",
    "schedule=cosine",
    "trainer.max_epochs=60",
    "trainer.devices=2",
    "checkpoint.every_n_steps=3",
    "monitor.progress=none",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        ("framework=lightning", "strategy=ddp"),
        ("framework=lightning", "strategy=fsdp", "strategy.blocks=[Block]"),
        ("framework=keras", "strategy=multiworker_mirrored"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_all_ranks_killed_and_resumed_give_the_same_bits(choice: tuple[str, ...], tmp_path: Path) -> None:
    """Weights, optimizer and random states at the end, after SIGKILL at a random moment."""
    whole = start(*LONG, *choice, f"paths.results={tmp_path / 'whole'}")
    said = whole.communicate(timeout=300)[0]
    assert whole.returncode == 0, said
    results = tmp_path / "results"
    process = start(*LONG, *choice, f"paths.results={results}", f"checkpoint.local={tmp_path / 'node'}")
    wait_for_checkpoint(process, results)
    delay = random.uniform(0, 1.5)
    time.sleep(delay)
    killed = [process.pid, *ranks(results)]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    psutil.wait_procs([psutil.Process(pid) for pid in killed if psutil.pid_exists(pid)], timeout=60)
    run = next(results.glob("digits/*"))
    assert len(killed) == 3 and state(run)["state"] == "running", f"it was over after {delay} s"
    again = start(f"resume={run}")
    said = again.communicate(timeout=300)[0]
    assert again.returncode == 0, said
    assert state(run)["restarts"] == 1
    framework = choice[0].removeprefix("framework=")
    assert outcome(framework, run) == outcome(framework, next((tmp_path / "whole").glob("digits/*")))
