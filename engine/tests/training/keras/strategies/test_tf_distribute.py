"""Several devices and processes give the result of one process with the same global batch."""

import re
from pathlib import Path

import numpy as np
import pytest

from engine.tests.training.rank_processes import run_ranks
from tools.testing.weights import final_weights, largest_difference
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.launch.processes import free_port
from train_anywhere.runs.folder import RunDir

PROGRAM = Path(__file__).with_name("ranks.py")
CONFIG = (
    "framework=keras",
    "monitor.progress=none",
    "model=mlp",
    "model.hidden=[32]",
    "model.dropout=0",
    "optimizer=sgd",
    "data.batch_size=48",
    "trainer.max_epochs=2",
    "trainer.accelerator=cpu",
    "trainer.accumulate_grad_batches=2",
    "trainer.gradient_clip_val=0.3",  # below the norms that occur: clipping before averaging would show
    "trainer.log_every_n_steps=3",
)


def start(run: RunDir, out: Path, ranks: int, signal_after: dict[int, int] | None = None) -> list[str]:
    """Run all ranks and return the output of each."""
    out.mkdir(exist_ok=True)
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    places = [
        common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {} for rank in range(ranks)
    ]
    steps = [[str(signal_after[rank])] if rank in (signal_after or {}) else [] for rank in range(ranks)]
    output = run_ranks([[str(PROGRAM), str(run.path), str(out), *step] for step in steps], places)
    return [re.findall(r"^\w+ \d+ \d+$", text, re.MULTILINE)[-1] for text in output]


def weights(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The weights of one process with the whole global batch."""
    return trained(tmp_path_factory.mktemp("single"), 1)[0]


def trained(
    folder: Path, ranks: int, *overrides: str, base: tuple[str, ...] = CONFIG
) -> list[dict[str, np.ndarray]]:
    """Return weights and moving statistics of each rank before the final exchange."""
    folder.mkdir(exist_ok=True)
    start(new_run(folder, *overrides, base=base), folder / "out", ranks)
    return [weights(folder / "out" / f"{rank}.npz") for rank in range(ranks)]


def new_run(folder: Path, *overrides: str, base: tuple[str, ...] = CONFIG) -> RunDir:
    from train_anywhere.config.command.compose import compose
    from train_anywhere.config.load import load
    from train_anywhere.distributed.layout import local_layout
    from train_anywhere.launch.local_run import make_run

    config = load(compose([*base, *overrides, f"paths.results={folder / 'results'}"]))
    return make_run(config, [], local_layout(config))


@pytest.mark.slow
def test_two_devices_of_one_process(single, tmp_path: Path) -> None:
    (mirrored,) = trained(tmp_path, 1, "strategy=mirrored", "trainer.devices=2")
    assert largest_difference(single, mirrored) < 1e-6


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_devices(train, single, tmp_path: Path) -> None:
    """The change is printed, and the weights are those of one device."""
    options = [o for o in CONFIG if not o.startswith("monitor.")] + [f"paths.results={tmp_path}"]
    begun = train(*options, "strategy=mirrored", "trainer.devices=2", "trainer.max_epochs=1")
    assert begun.returncode == 0, begun.stderr
    ended = train(f"resume={tmp_path / 'latest'}", "trainer.devices=3", "trainer.max_epochs=2")
    assert ended.returncode == 0, ended.stderr
    assert "resuming at step 13 of 26" in ended.stdout
    assert "resuming a 2-device checkpoint on 3" in ended.stdout
    assert largest_difference(single, weights(tmp_path / "latest/checkpoints/00000026/weights.npz")) < 1e-6


@pytest.mark.slow
def test_two_processes(single, tmp_path: Path) -> None:
    first, second = trained(tmp_path, 2, "strategy=multiworker_mirrored", "trainer.devices=2")
    assert largest_difference(first, second) == 0
    assert largest_difference(single, first) < 1e-6
    assert largest_difference(single, {k: np.zeros_like(v) for k, v in single.items()}) > 0.1


@pytest.mark.slow
def test_batch_norm_over_the_rows_of_all_ranks(tmp_path: Path) -> None:
    """Moving statistics and weights equal one process with the whole batch only if synchronized."""
    options = ("model=cnn", "model.dropout=0", "trainer.max_epochs=1", "trainer.limit_train_batches=6")
    options += ("trainer.accumulate_grad_batches=1", "trainer.limit_val_batches=1")
    two = (*options, "strategy=multiworker_mirrored", "trainer.devices=2")
    base = CONFIG[:2] + CONFIG[5:]
    [alone] = trained(tmp_path / "alone", 1, *options, base=base)
    apart = trained(tmp_path / "apart", 2, *two, base=base)[0]
    first, second = trained(tmp_path / "together", 2, *two, "trainer.sync_batchnorm=true", base=base)
    assert sum("moving" in name for name in alone) == 4
    assert largest_difference(first, second) == 0
    assert largest_difference(alone, first) < 1e-5
    assert largest_difference(alone, apart) > 1e-4


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_they_go_on_bit_for_bit(tmp_path: Path) -> None:
    options = ("strategy=multiworker_mirrored", "trainer.devices=2")
    options += ("model.dropout=0.3", "trainer.precision=16-mixed")
    expected = trained(tmp_path / "whole", 2, *options)
    run, out = new_run(tmp_path / "parts", *options), tmp_path / "parts" / "out"
    stopped = start(run, out, 2, signal_after={1: 5})
    assert stopped == ["preempted 6 0"] * 2  # at the next exchange of metrics
    ended = start(run, out, 2)
    assert ended == ["completed 26 2"] * 2
    for rank in range(2):
        assert largest_difference(expected[rank], weights(out / f"{rank}.npz")) == 0


def test_slurm_places_in_the_order_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven nodes without GPUs, whose names sort otherwise than Slurm lists them."""
    from train_anywhere.training.keras.strategies.choose import cluster_resolver

    topology = Topology(
        rank=2, world_size=3, local_world_size=1, node_rank=1, nodes=2, coordinator_address="node9",
        coordinator_port=5000, launched_by="srun", hosts=(("node9", 2), ("node10", 1)),
    )  # fmt: skip
    monkeypatch.setenv("SLURM_PROCID", "2")
    resolver = cluster_resolver(topology, gpus=0)
    assert resolver.cluster_spec().as_dict() == {"worker": ["node9:5000", "node9:5001", "node10:5000"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.num_accelerators() == {"GPU": 0}


def test_other_launchers_use_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from train_anywhere.training.keras.strategies.choose import cluster_resolver

    monkeypatch.setenv("TF_CONFIG", "{}")  # put back afterwards
    topology = Topology(
        rank=1, local_rank=1, world_size=2, local_world_size=2, coordinator_port=5000, launched_by="local"
    )
    resolver = cluster_resolver(topology, gpus=0)
    assert resolver.cluster_spec().as_dict() == {"worker": ["127.0.0.1:5000", "127.0.0.1:5001"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


@pytest.mark.slow
def test_each_device_keeps_its_own_dropout_after_a_resume(train, tmp_path: Path) -> None:
    """A callback may change all variables at the start, so these are restored after it."""
    words = ("framework=keras", "strategy=mirrored", "trainer.devices=2", "trainer.accelerator=cpu")
    words += ("model=mlp", "model.dropout=0.5", "schedule=constant", "data.batch_size=512")
    words += ("+callbacks.any._target_=keras.callbacks.TerminateOnNaN",)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for overrides in (
        (*words, "trainer.max_epochs=2", f"paths.results={whole}"),
        (*words, "trainer.max_epochs=1", f"paths.results={parts}"),
        (f"resume={parts / 'latest'}", "trainer.max_epochs=2"),
    ):
        done = train(*overrides)
        assert done.returncode == 0, done.stderr
    assert largest_difference(final_weights(whole / "latest"), final_weights(parts / "latest")) == 0


def test_a_gpu_that_is_asked_for_and_not_there_is_refused(make_config, monkeypatch) -> None:
    import tensorflow as tf

    from train_anywhere.training.keras.strategies.choose import make_strategy

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(ConfigError) as refused:
        make_strategy("single", make_config("framework=keras", "trainer.accelerator=gpu"), Topology(), 1)
    assert refused.value.problems == [
        "trainer.accelerator=gpu, but TensorFlow sees no GPU here; use trainer.accelerator=auto or cpu."
    ]
