"""Streams with a known split are split over ranks, others refused unless the user splits."""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from engine.tests.training.lightning.stream_libraries import LIBRARIES, write
from engine.tests.training.lightning.streams import Own, Shards
from train_anywhere.data.order.row_check import RowHashes, refuse_equal_rows
from train_anywhere.data.torch.loader import Batch
from train_anywhere.data.torch.user_loader import Ranks, Stream, lists_shards, split_stream
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.errors import DataError


def keys(stream: Any) -> list[int]:
    return [round(float(image[0, 0, 0]) * 1000) for image, _ in stream]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_stream_with_shards_is_split(ranks: int) -> None:
    read = [keys(split_stream(Shards(), rank, ranks)) for rank in range(ranks)]
    assert sorted(k for one in read for k in one) == list(range(240))
    loaders = [split_stream(DataLoader(Shards(), batch_size=None), rank, ranks) for rank in range(ranks)]
    assert [keys(loader) for loader in loaders] == read


def test_a_stream_that_is_split_already_is_not_split_again() -> None:
    """By lists of shards that differ between the ranks, or by split_dataset_by_node."""
    lists = [lists_shards(DataLoader(Files([f"{rank}.tar"]), batch_size=None)) for rank in (0, 1)]
    assert lists == [["0.tar"], ["1.tar"]]
    stream = Shards()
    assert split_stream(stream, 0, 2, own=True) is stream
    stream._distributed = object()  # type: ignore[attr-defined]
    assert split_stream(stream, 1, 2) is stream


class Files(Shards):
    """A stream with a list of files, which other objects hold."""

    def __init__(self, files: list[str]) -> None:
        super().__init__()
        self.pipeline = [types.SimpleNamespace(urls=files)]


def test_a_stream_without_a_known_split_is_not() -> None:
    assert split_stream(Own(False), 0, 2) is None
    assert split_stream(Shards(range(1)), 0, 2) is None  # fewer shards than ranks


def test_a_pipeline_of_webdataset_splits_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = types.ModuleType("webdataset")
    library.split_by_node = lambda source: source
    library.shardlists = types.SimpleNamespace(single_node_only=lambda source: source)
    monkeypatch.setitem(sys.modules, "webdataset", library)
    stream = types.SimpleNamespace(pipeline=["urls", library.shardlists.single_node_only, "decode"])
    assert split_stream(types.SimpleNamespace(pipeline=[*stream.pipeline]), 0, 2, own=True).pipeline == [
        "urls",
        "decode",
    ]
    for _ in range(2):
        assert split_stream(stream, 0, 2) is stream
        assert stream.pipeline == ["urls", library.split_by_node, "decode"]


def batches(count: int, first: int = 0) -> list[Batch]:
    rows = (torch.full((2, 3), float(first + n)) for n in range(count))
    return [Batch((images, images[:, 0]), torch.ones(2)) for images in rows]


def test_equal_rows_of_ranks_end_the_run() -> None:
    found: list[list[int]] = []
    for first in (0, 100):
        ranks = Ranks(0, 2, lambda value: (isinstance(value, list) and found.append(value)) or [value], True)
        list(Stream(batches(6, first), 0, ranks, 6, (0, 0)))
    refuse_equal_rows(found, 4)
    with pytest.raises(
        DataError, match=r"data\.split=own: ranks 0 and 1 read the same rows, 4 of 4 compared in the first 4"
    ):
        refuse_equal_rows([found[0], found[0]], 4)
    refuse_equal_rows([found[0], [*found[0][:2], 1, 2]], 4)
    many = [RowHashes(), RowHashes(), RowHashes()]
    for hashes, first in zip(many, (0, 0, 10_000), strict=True):
        hashes.add([np.arange(first, first + 9000)])
    refuse_equal_rows([many[0].smallest, many[2].smallest], 4)
    with pytest.raises(DataError, match="1024 of 1024"):
        refuse_equal_rows([one.smallest for one in many[:2]], 4)


def test_a_rank_that_ends_earlier_continues_without_weight() -> None:
    counts = {0: 3, 1: 5}
    for start in (0, 4):
        read = {
            rank: [
                batch.weight.sum().item()
                for batch in Stream(
                    batches(count), 0, Ranks(rank, 2, lambda value: [value, 5]), 5, (0, start)
                )
            ]
            for rank, count in counts.items()
        }
        assert read == {0: [2.0, 2, 2, 0, 0][start:], 1: [2.0] * (5 - start)}
    with pytest.raises(DataError, match=r"ended after 4 batches, but 5 were expected.*train_batches=4"):
        list(Stream(batches(3), 0, Ranks(0, 2, lambda value: [value, 4]), 5, (0, 0)))
    with pytest.raises(DataError, match=r"the loader of rank 1 has no batch; use more shards than ranks"):
        list(Stream([], 0, Ranks(1, 2), 5, (0, 0)))


STREAM = "data._target_=engine.tests.training.lightning.streams."
SMALL = (
    "task._target_={lightning: engine.tests.data.id_tasks.torch_task}",
    "model=mlp",
    "model.hidden=[8]",
    "model.dropout=0",
    "data.batch_size=24",
    "trainer.limit_train_batches=10",
    "trainer.max_epochs=2",
    "trainer.accelerator=cpu",
    "trainer.devices=2",
    "checkpoint.every_n_steps=4",
    "checkpoint.monitor=null",
    "monitor.progress=none",
)


def ids_after_a_kill(
    tmp_path: Path, train: Any, *words: str, same_order: bool = True, epoch: int = 10, kill: int = 9
) -> None:
    """Train two epochs on two ranks with a kill and a resume. Each row is read once per epoch."""
    arguments = [*SMALL, *words, f"paths.results={tmp_path / 'results'}"]
    for attempt in (1, 2):
        environ = {"IDS": f"{tmp_path}/ids{attempt}", "KILL": str(kill) if attempt == 1 else "0"}
        done = train(*arguments, env={**environ, "STREAMS": str(tmp_path / "files")})
        assert done.returncode == (137 if attempt == 1 else 0), done.stdout + done.stderr
        arguments = [f"resume={(tmp_path / 'results' / 'latest').resolve()}"]
    start = json.loads((tmp_path / "results" / "latest" / "run.json").read_text())["attempts"][1]["from_step"]
    found: list[list[int]] = [[], []]
    for rank in (0, 1):
        files = [tmp_path / f"ids{attempt}-{rank}" for attempt in (1, 2)]
        before, after = ([line.split() for line in file.read_text().splitlines()] for file in files)
        steps = [*before[:start], *after]
        first, second = (
            [int(key) for step in part for key in step] for part in (steps[:epoch], steps[epoch:])
        )
        assert len(steps) == 2 * epoch and (first == second or not same_order)
        found[0] += first
        found[1] += second
    assert [sorted(ids) for ids in found] == [[*range(240)]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("words", [("open_shards",), ("open_own", "data.split=own")])
def test_each_row_once_on_two_ranks_after_a_kill(tmp_path: Path, train: Any, words: tuple[str, ...]) -> None:
    ids_after_a_kill(tmp_path, train, STREAM + words[0], *words[1:])


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_streams_of_different_lengths(tmp_path: Path, train: Any, require: Any, strategy: str) -> None:
    """Rank 0 has 9 batches, rank 1 has 12; the run continues after the end of one of them."""
    require(strategy == "ddp" or not horovod_problem("torch"), "run `make horovod`")
    words = ("data.uneven=true", "data.split=own", f"strategy={strategy}", "checkpoint.every_n_steps=5")
    words = (*words, "trainer.limit_train_batches=12")
    ids_after_a_kill(tmp_path, train, STREAM + "open_own", *words, epoch=12, kill=11)


@pytest.mark.slow
@pytest.mark.parametrize("library", [*LIBRARIES, "webdataset.own", "datasets.own"])
def test_streams_of_other_libraries(tmp_path: Path, train: Any, library: str) -> None:
    name = library.partition(".")[0]
    pytest.importorskip(name)
    write(name, tmp_path / "files")
    target = "data._target_=engine.tests.training.lightning.stream_libraries.open_library"
    ids_after_a_kill(tmp_path, train, target, f"data.library={library}", same_order=name != "datasets")


class Ended:
    """A loader that stands at its end once after its state was restored, as litdata's."""

    def __init__(self) -> None:
        self.at_end = False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at_end = True

    def __iter__(self) -> Any:
        rows, self.at_end = () if self.at_end else (1, 2), False
        return iter(rows)


def test_a_restored_loader_at_its_end_is_read_again() -> None:
    loader = Ended()
    stream = Stream(loader, 1, Ranks(), 2, (0, 0))
    loader.load_state_dict({})
    assert list(stream) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data.own=false",), "would give all 2 ranks the same batches"),
        (("data.own=false", "data.split=own"), "data.split=own: ranks 0 and 1 read the same rows"),
    ],
)
def test_equal_rows_are_refused(tmp_path: Path, train: Any, words: tuple[str, ...], message: str) -> None:
    done = train(
        STREAM + "open_own", *words, *SMALL, f"paths.results={tmp_path}", env={"IDS": f"{tmp_path}/ids"}
    )
    assert done.returncode and message in done.stderr, done.stdout + done.stderr


def test_an_argument_of_the_target_keeps_the_name(make_config: Any) -> None:
    from train_anywhere.data.open_data import open_splits

    config = make_config("data._target_=builtins.dict", "data.split=train")
    assert not config.data.own_split and os.path.exists("/")
    assert make_config(STREAM + "open_own", "data.split=own").data.own_split
    assert open_splits(make_config(STREAM + "open_own", "data.split=own").data, "lightning").train
