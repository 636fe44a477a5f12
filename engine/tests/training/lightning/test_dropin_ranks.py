"""A user's module on several ranks gives the result of one, or all ranks refuse it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.tests.training.rank_processes import run_ranks
from tools.testing.weights import final_weights, largest_difference
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.training.lightning.loop.over_ranks import read_weights

from .test_ddp import RANK, places

HERE = "engine.tests.training.lightning.strangers"
WORDS = (
    "data.batch_size=10",  # 37 rows to validate: 7 in the last batch
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=3",
    "trainer.accelerator=cpu",
    "checkpoint.local=null",
    "monitor.progress=none",
)
DDP = ("strategy=ddp", "trainer.devices=2")
STRATEGIES = [
    "ddp",
    pytest.param("fsdp", marks=pytest.mark.slow),
    pytest.param("horovod", marks=[pytest.mark.horovod, pytest.mark.slow]),
]


def train(folder: Path, ranks: int, module: str, data: str, *words: str) -> list[dict[str, Any]]:
    """Return the result of each rank."""
    names = (f"task._target_={HERE}.{module}", f"data._target_={HERE}.{data}")
    return train_runs(ranks, [(folder, *names, *words)])[0]


def train_runs(ranks: int, runs: list[tuple[Any, ...]]) -> list[list[dict[str, Any]]]:
    """Return each rank's results of several runs, given as folder and words, in one start."""
    arguments: list[str] = []
    for folder, *words in runs:
        folder.mkdir(parents=True, exist_ok=True)
        arguments += ["--", str(folder), *WORDS, *words]
    output = run_ranks([[str(RANK), *arguments[1:]]] * ranks, places(ranks))
    assert "module.forward" not in "".join(output)  # ddp sets it, and it is not a state
    return [[json.loads((run[0] / f"rank-{n}.json").read_text()) for n in range(ranks)] for run in runs]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], Path]]:
    """`alone("Plain")`: outcome and folder of one process."""
    known: dict[str, tuple[dict[str, Any], Path]] = {}

    def run(module: str) -> tuple[dict[str, Any], Path]:
        if module not in known:
            folder = tmp_path_factory.mktemp(module)
            known[module] = train(folder, 1, module, "rows", "strategy=single")[0], folder
        return known[module]

    return run


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.slow
@pytest.mark.parametrize("module", ["Plateau", "Measured"])
def test_two_ranks_train_as_one(module, strategy, alone, require, tmp_path) -> None:
    """Weights and every metric over all rows, and a schedule that watches one."""
    require(strategy != "horovod" or not horovod_problem("torch"), "run `make horovod`")
    single, folder = alone(module)
    ranks = train(tmp_path, 2, module, "rows", f"strategy={strategy}", "trainer.devices=2")
    assert [rank.get("error") for rank in ranks] == [None, None]
    assert largest_difference(final_weights(tmp_path), final_weights(folder)) < 1e-5
    assert ranks[0]["metrics"].keys() == single["metrics"].keys()
    for rank in ranks:
        for name, value in rank["metrics"].items():
            assert value == pytest.approx(single["metrics"][name], rel=1e-4), name


@pytest.mark.slow
def test_manual_optimization_of_two_optimizers_on_two_ranks(tmp_path: Path) -> None:
    """Random numbers differ between ranks, so only their weights at the end are compared."""
    ranks = train(tmp_path, 2, "Adversaries", "rows", "strategy=ddp", "trainer.devices=2")
    assert [rank.get("error") for rank in ranks] == [None, None]
    assert ranks[0]["step"] == ranks[1]["step"] == 20
    assert ranks[0]["metrics"] == ranks[1]["metrics"]


@pytest.mark.slow
def test_different_names_on_the_ranks_are_refused_by_all(tmp_path: Path) -> None:
    """Each would wait for the other, or mix up the numbers."""
    ranks = train(tmp_path, 2, "Unequal", "rows", "strategy=ddp", "trainer.devices=2")
    for number, rank in enumerate(ranks):
        assert f"rank {number}: val_of_{number}" in rank["error"]


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if "fsdp" not in str(s)])
def test_weights_that_part_are_an_error(strategy, require, tmp_path) -> None:
    require(strategy != "horovod" or not horovod_problem("torch"), "run `make horovod`")
    ranks = train(tmp_path, 2, "Drifting", "rows", f"strategy={strategy}", "trainer.devices=2")
    assert [rank["kind"] for rank in ranks] == ["RanksDifferError"] * 2
    assert "the weights of rank 1 of 2 are not those of rank 0" in ranks[0]["error"]


def test_weights_of_any_type_and_shape_are_compared() -> None:
    module, scale = (
        torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(())),
    )
    module.register_parameter("scale", scale)
    assert [len(part) for part in read_weights(module)] == [4, 4]


@pytest.mark.slow
def test_a_stream_without_a_length_is_read_on_several_ranks(tmp_path: Path) -> None:
    words = ("strategy=ddp", "trainer.devices=2", "trainer.limit_train_batches=4")
    ranks = train(tmp_path, 2, "Plain", "endless", *words)
    assert [rank["step"] for rank in ranks] == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("trainer.limit_train_batches=6",)])
def test_the_ranks_end_an_epoch_with_the_first_of_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    """They have five and seven batches without a length."""
    ranks = train(tmp_path, 2, "Plain", "uneven", "data.ranks=[20,28]", *DDP, *words)
    assert [rank.get("error") for rank in ranks] == [None, None]
    assert [rank["step"] for rank in ranks] == [10, 10]
    assert ranks[0]["metrics"] == ranks[1]["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data.ranks=[0,28]",), "the training loader has no batch on 1 of 2 ranks"),
        (
            ("data.ranks=[20,28]", "data.sized=true"),
            "has 5 batches on one rank and 7 on another, and all ranks make the same steps; use trainer.limit_train_batches=5",
        ),
    ],
)
def test_ranks_without_the_same_steps_are_refused_by_all(tmp_path, words, message) -> None:
    for rank in train(tmp_path, 2, "Plain", "uneven", *DDP, *words):
        assert message in rank["error"]


@pytest.mark.slow
def test_a_data_module_on_two_ranks_makes_half_the_steps(alone: Any, tmp_path: Path) -> None:
    """Each rank reads batches of its argument batch_size."""
    one = train(tmp_path / "one", 1, "Plateau", "Module", "strategy=single")[0]
    two = train(tmp_path / "two", 2, "Plateau", "Module", "strategy=ddp", "trainer.devices=2")
    assert (one["step"], two[0]["step"]) == (20, 10)


@pytest.mark.slow
def test_a_loader_with_a_sampler_that_shares_is_read_as_it_is(tmp_path: Path) -> None:
    """Each row once in an epoch, over both ranks."""
    ranks = train(tmp_path, 2, "Adding", "shared", "strategy=ddp", "trainer.devices=2")
    assert [rank.get("error") for rank in ranks] == [None, None]
    assert [rank["step"] for rank in ranks] == [20, 20]
    assert ranks[0]["metrics"]["rows"] == sum(range(100))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "batch"), [("Dividing", 16), ("Passing", 32)])
def test_a_data_module_gets_its_batch_size_as_typed(module: str, batch: int, tmp_path: Path) -> None:
    """Lightning-hydra-template's module divides it by the ranks, others do not: `batch` is that of both ranks."""
    data = "engine.tests.training.lightning.data_strangers"
    words = (f"task._target_={data}.Lit", f"data._target_={data}.{module}", "data.batch_size=16")
    ranks = train(tmp_path, 2, "Plain", "rows", "strategy=ddp", *words)
    assert [rank["step"] for rank in ranks] == [2 * 64 // batch] * 2
    assert ranks[0]["metrics"]["val_rows"] == 32


UNEVEN = "engine.tests.training.lightning.uneven_strangers"
UNEVEN_WORDS = (
    f"data._target_={UNEVEN}.numbers", "strategy=ddp", "trainer.devices=2", "data.batch_size=10", "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1", "checkpoint.monitor=val_sync", "checkpoint.mode=min",
)  # fmt: skip
MEAN = 88.0  # of the squares of 0..16


def test_ranks_with_different_numbers_of_rows(tmp_path: Path) -> None:
    """Three runs in the same two processes, which take seconds to start."""
    logging, misfit, zero = train_runs(2, [
        (tmp_path / "logging", *UNEVEN_WORDS, f"task._target_={UNEVEN}.Logging", "loggers=mlflow"),
        (tmp_path / "misfit", *UNEVEN_WORDS, f"task._target_={UNEVEN}.Misfit"),
        (tmp_path / "zero", *UNEVEN_WORDS, f"task._target_={UNEVEN}.Logging", "checkpoint.monitor=val_zero"),
    ])  # fmt: skip
    check_values(logging)
    for rank in misfit:
        assert "all_gather got tensors of the shapes [2, 3], [2, 4] from ranks 0 to 1" in rank["error"]
    assert zero[0] == zero[1]
    assert "logged with rank_zero_only=True" in zero[0]["error"]


def check_values(ranks: list[dict[str, Any]]) -> None:
    """Compare each value with that of all rows."""
    for rank in ranks:
        assert "error" not in rank
        got = rank["metrics"]
        for kind in ("val", "test"):
            names = (
                "sync", "own", "given", "dict", "group", "torchmetrics", "forked_epoch", "own_forked_epoch",
            )  # fmt: skip
            assert {n: got[f"{kind}_{n}"] for n in names} == pytest.approx(dict.fromkeys(names, MEAN))
            for sync in (False, True):
                assert [got[f"{kind}_{n}_{sync}"] for n in ("sum", "max", "min")] == [1496.0, 256.0, 0.0]
        assert got["val_gathered"] == MEAN
        assert got["train_sync_epoch"] == got["train_own_epoch"]
