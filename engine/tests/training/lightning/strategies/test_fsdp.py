"""FSDP's checkpoints: a file per rank, which any number of ranks can read."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from engine.tests.training.lightning.test_ddp import train as train_ranks
from tools.testing.weights import final_weights, info, largest_difference

Train = Callable[..., "CompletedProcess[str]"]

RUN = (
    "model=mlp",
    "model.hidden=[33]",  # no multiple of the ranks
    "model.dropout=0",
    "schedule=constant",
    "data.batch_size=96",
    "trainer.accelerator=cpu",
    "checkpoint.keep_last=9",
)
GPT = (
    "task=language_model",
    "model=gpt",
    "model.layers=2",
    "model.heads=2",
    "model.kv_heads=1",
    "model.width=20",  # its 29 tokens are not a multiple of the ranks
    "data._target_=tests.tasks.sentences.open_sentences",
    "data.batch_size=12",
    "strategy.blocks=[Block]",
)
"""Weights that two layers share, blocks by their class, rows that do not count the same."""


def newest(run: Path) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / "newest").read_text().strip()


@pytest.mark.slow
def test_a_language_model_resumes_on_another_number_of_ranks(train: Train, tmp_path: Path) -> None:
    """Four ranks begin, two resume: the weights of one process that did it all."""
    whole, parts = f"paths.results={tmp_path / 'whole'}", f"paths.results={tmp_path / 'parts'}"
    run = (*GPT[:-1], "schedule=constant", "trainer.accelerator=cpu", "optimizer.eps=1e-4")
    assert train(*run, "strategy=single", "trainer.max_epochs=2", whole).returncode == 0
    first = train(*run, GPT[-1], "strategy=fsdp", "trainer.devices=4", "trainer.max_epochs=1", parts)
    assert first.returncode == 0, first.stderr
    begun = (tmp_path / "parts" / "latest").resolve()
    assert len(list(newest(begun).glob("__*"))) == 4
    second = train(f"resume={begun}", "trainer.devices=2", "trainer.max_epochs=2")
    assert second.returncode == 0, second.stderr
    assert "resuming a 4-device checkpoint on 2" in second.stdout
    assert len(list(newest(begun).glob("__*"))) == 2
    assert largest_difference(final_weights(begun), final_weights(tmp_path / "whole" / "latest")) < 1e-5


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_ranks(train: Train, tmp_path: Path) -> None:
    """Two ranks start and three resume, with AdamW's split state and the node's disk.

    The weights are those of one process, and nothing is left on the node's disk.
    """
    local = tmp_path / "node"
    whole = f"paths.results={tmp_path / 'whole'}"
    parts = [f"paths.results={tmp_path / 'parts'}", f"checkpoint.local={local}"]
    assert train(*RUN, "strategy=single", "trainer.max_epochs=2", whole).returncode == 0
    first = train(*RUN, "strategy=fsdp", "trainer.devices=2", "trainer.max_epochs=1", *parts)
    assert first.returncode == 0, first.stderr
    assert [list(user.iterdir()) for user in local.iterdir()] == [[]]
    run = (tmp_path / "parts" / "latest").resolve()
    assert sorted(p.name for p in newest(run).iterdir()) == [
        ".metadata", ".run-marker", "__0_0.distcp", "__1_0.distcp", "manifest.json", "model.ckpt",
    ]  # fmt: skip
    assert not list((run / "checkpoints").glob("shards*"))
    assert "a part of a checkpoint" not in first.stderr
    assert list((run / "tensorboard").iterdir())
    second = train(f"resume={run}", "trainer.devices=3", "trainer.max_epochs=2")
    assert second.returncode == 0, second.stderr
    assert "resuming a 2-device checkpoint on 3" in second.stdout
    assert len(list(newest(run).glob("__*"))) == 3
    assert info(run)["step"] == info(tmp_path / "whole" / "latest")["step"]
    assert largest_difference(final_weights(run), final_weights(tmp_path / "whole" / "latest")) < 1e-5


DROP_IN = (
    "task._target_=engine.tests.training.lightning.strangers.Plain", "data._target_=engine.tests.training.lightning.strangers.rows",
    "data.batch_size=10", "checkpoint.monitor=val_loss",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("run", [GPT[:-1], DROP_IN], ids=["network", "module"])
def test_weights_begin_with_the_bits_of_one_process(run, train, tmp_path) -> None:
    """As drawn from the seed, and as another run ended. One step that changes no weight follows."""
    still = (*run, "optimizer=sgd", "optimizer.lr=1e-30", "schedule=constant", "trainer.max_steps=1")
    for name, words in {
        "whole": ("strategy=single",),
        "parts": ("strategy=fsdp", "trainer.devices=2"),
        "begun": ("strategy=fsdp", "trainer.devices=2", "seed=5", f"init={tmp_path / 'whole' / 'latest'}"),
        "again": ("strategy=single", "seed=5", f"init={tmp_path / 'parts' / 'latest'}"),
    }.items():
        done = train(*still, *words, "trainer.accelerator=cpu", f"paths.results={tmp_path / name}")
        assert done.returncode == 0, done.stderr
    whole = final_weights(tmp_path / "whole" / "latest")
    for name in ("parts", "begun", "again"):
        assert largest_difference(final_weights(tmp_path / name / "latest"), whole) == 0


@pytest.mark.slow
def test_nodes_that_hold_a_whole_model_each(tmp_path: Path) -> None:
    """Two nodes of two ranks with equal halves resume as one model over two ranks."""
    run = (
        *GPT,
        "data=custom",
        "optimizer=sgd",
        "schedule=constant",
        "trainer.accelerator=cpu",
        "trainer.limit_test_batches=0",
        "monitor.progress=none",
        "strategy=fsdp",
    )
    whole = tmp_path / "whole"
    ranks = train_ranks(tmp_path, (2, 2), *run, "strategy.shard_within_node=true", "trainer.max_epochs=1")
    parts = [rank["weights"] for rank in ranks]
    assert parts[0] == parts[2] != parts[1] == parts[3]
    assert sum(map(len, parts[0])) < 0.6 * sum(map(len, [*parts[0], *parts[1]]))
    train_ranks(whole, (1,), *run, "trainer.max_epochs=1")
    assert largest_difference(final_weights(tmp_path), final_weights(whole)) < 1e-6
    train_ranks(tmp_path, (2,), *run, "trainer.max_epochs=2")
    train_ranks(whole, (1,), *run, "trainer.max_epochs=2")
    assert largest_difference(final_weights(tmp_path), final_weights(whole)) < 1e-6


@pytest.mark.slow
def test_a_damaged_shard_is_noticed_and_other_strategies_are_refused(train: Train, tmp_path: Path) -> None:
    options = ("strategy=fsdp", "trainer.devices=1", "trainer.max_epochs=2")
    assert train(*RUN, *options, f"paths.results={tmp_path}").returncode == 0
    run = (tmp_path / "latest").resolve()
    refused = train(f"resume={run}", "strategy=single", "trainer.max_epochs=3")
    assert "strategy.name=single" in refused.stderr
    assert "Traceback" not in refused.stderr
    shard = newest(run) / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    again = train(f"resume={run}", "trainer.max_epochs=3")
    assert again.returncode == 0, again.stderr
    assert "__0_0.distcp" in again.stderr
    assert "resuming at step 13 of 39" in again.stdout


@pytest.mark.slow
def test_a_rank_that_can_t_write_its_shards_does_not_stop_the_training(train: Train, tmp_path: Path) -> None:
    """The kernel lets it write files of 4 kB. One message at the end names the missing part."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, resource\n"
        'if os.environ.get("RANK") == "1":\n'
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
    )
    options = (
        *RUN,
        "strategy=fsdp",
        "trainer.devices=2",
        "trainer.max_epochs=3",
        f"paths.results={tmp_path}",
    )
    failed = train(*options, env={"PYTHONPATH": str(tmp_path)})
    assert failed.returncode == 1
    assert failed.stderr.count("continuing without it.") == 3, failed.stderr
    assert "error: rank 1 can't write its part of a checkpoint" in failed.stderr
    assert "File too large" in failed.stderr and "Traceback" not in failed.stderr
    run = (tmp_path / "latest").resolve()
    assert not [*(run / "checkpoints").glob("shards*"), *(run / "checkpoints").glob("[0-9]*")]
    again = train(f"resume={run}")
    assert again.returncode == 0 and "test/acc" in again.stdout, again.stderr
