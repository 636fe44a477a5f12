"""Several ranks train as one, started with torchrun's variables, with gloo."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.tests.training.rank_processes import run_ranks
from train_anywhere.launch.processes import free_port
from train_anywhere.runs.folder import RunDir

from .conftest import assert_equal, final_state

RANK = Path(__file__).with_name("dropin_rank.py")

# rank 1 has only padding of the last batch of an epoch; without a test the weights at the end are those of the last step
PLAIN = (
    "model=mlp", "model.hidden=[32]", "model.dropout=0", "optimizer=sgd", "data.batch_size=96", "trainer.max_epochs=2",
    "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=0.5", "trainer.limit_test_batches=0",
    "trainer.accelerator=cpu", "trainer.log_every_n_steps=4", "monitor.progress=none",
)  # fmt: skip
"""Everything whose result must not depend on the number of ranks: no dropout, no batch normalisation."""


def places(*ranks_of_node: int) -> list[dict[str, str]]:
    """torchrun's variables of every rank, for nodes with these numbers of ranks."""
    world = {"WORLD_SIZE": str(sum(ranks_of_node)), "GROUP_WORLD_SIZE": str(len(ranks_of_node))}
    world |= {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(free_port())}
    world |= {"TRAIN_HOSTS": ",".join(f"node{n}:{count}" for n, count in enumerate(ranks_of_node))}
    ranks = [(node, local, count) for node, count in enumerate(ranks_of_node) for local in range(count)]
    names = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return [
        {**world, "RANK": str(rank), **dict(zip(names, map(str, place), strict=True))}
        for rank, place in enumerate(ranks)
    ]


def train(folder: Path, ranks_of_node: tuple[int, ...], *overrides: str, **env: str) -> list[dict[str, Any]]:
    """Train in `folder` and return the result of each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    around = [place | env for place in places(*ranks_of_node)]
    run_ranks([[str(RANK), str(folder), *overrides]] * len(around), around)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(len(around))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of one process with the whole batch."""
    return train(tmp_path_factory.mktemp("alone"), (1,), *PLAIN)[0]


@pytest.mark.slow
@pytest.mark.parametrize("ranks_of_node", [(2,), (2, 1)], ids=["two ranks", "three ranks on two nodes"])
def test_ranks_train_as_one(ranks_of_node: tuple[int, ...], alone: dict[str, Any], tmp_path: Path) -> None:
    """Without averaged gradients the ranks' weights would differ from the first step."""
    ranks = train(tmp_path, ranks_of_node, *PLAIN)
    assert len(ranks) == sum(ranks_of_node)
    for rank in ranks[1:]:
        assert rank["weights"] == ranks[0]["weights"]
    for ours, single in zip(ranks[0]["weights"], alone["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(single), rtol=1e-5, atol=1e-6)
    assert ranks[0]["step"] == alone["step"] == 14
    for name, value in alone["metrics"].items():
        assert ranks[0]["metrics"][name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.slow
def test_gradients_are_sent_with_16_bits(alone: dict[str, Any], tmp_path: Path) -> None:
    how = ("strategy=ddp", "strategy.compression=fp16", "strategy.bucket_cap_mb=0.01")
    ranks = train(tmp_path, (2,), *PLAIN, *how)
    assert ranks[0]["weights"] == ranks[1]["weights"]
    found, exact = (torch.cat([torch.tensor(w).flatten() for w in r["weights"]]) for r in (ranks[0], alone))
    assert 1e-6 < (found - exact).abs().max() < 1e-2


@pytest.mark.slow
def test_a_static_graph_changes_nothing(tmp_path: Path) -> None:
    words = (*PLAIN, "trainer.accumulate_grad_batches=1", "strategy=ddp")
    static = train(tmp_path / "static", (2,), *words, "strategy.static_graph=true")
    assert static[0]["weights"] == train(tmp_path / "other", (2,), *words)[0]["weights"]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    """And the run resumes with the same bits: dropout has its own random numbers on each rank."""
    overrides = (*PLAIN, "model.dropout=0.5", "trainer.log_every_n_steps=2")
    train(tmp_path / "whole", (2,), *overrides)
    first = train(tmp_path / "parts", (2,), *overrides, SIGNAL_AT="1:18")
    # asked in step 9, agreed at 10
    assert [(r["state"], r["step"]) for r in first] == [("preempted", 10)] * 2
    second = train(tmp_path / "parts", (2,), *overrides)
    assert [(r["state"], r["step"]) for r in second] == [("completed", 14)] * 2
    assert_equal(final_state(RunDir(tmp_path / "parts")), final_state(RunDir(tmp_path / "whole")))


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_ranks(alone: dict[str, Any], tmp_path: Path) -> None:
    assert train(tmp_path, (1,), *PLAIN, SIGNAL_AT="0:17")[0]["state"] == "preempted"
    ranks = train(tmp_path, (2,), *PLAIN)
    assert ranks[0]["step"] == 14
    for ours, single in zip(ranks[1]["weights"], alone["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(single), rtol=1e-5, atol=1e-6)
