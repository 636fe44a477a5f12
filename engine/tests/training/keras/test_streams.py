"""Streams on several ranks: the ranks share the rows of each batch, or each reads rows of its own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from train_anywhere.data.tf.streams import share_rows
from train_anywhere.distributed.packages import horovod_problem

WORDS = (
    "framework=keras", "task=custom", "data=custom", "data.batch_size=24", "task._target_=engine.tests.training.keras.streams.Ids",
    "data._target_=engine.tests.training.keras.streams.open_stream", "trainer.max_epochs=2", "trainer.accelerator=cpu",
    "trainer.devices=2", "checkpoint.every_n_steps=4", "monitor.progress=none", "trainer.limit_train_batches=10",
)  # fmt: skip
STRATEGIES = ["multiworker_mirrored", pytest.param("horovod", marks=pytest.mark.horovod), "mirrored"]


def train_ids(tmp_path: Path, train: Any, kind: str, *words: str) -> list[list[list[int]]]:
    """Train two epochs on two ranks with a kill and a resume; return the ids of each step of each process."""
    arguments = [*WORDS, *words, f"data.kind={kind}", f"paths.results={tmp_path / 'results'}"]
    for attempt in (1, 2):
        env = {"IDS": f"{tmp_path}/ids{attempt}", "KILL": "7" if attempt == 1 else "0"}
        done = train(*arguments, env=env)
        assert done.returncode == (137 if attempt == 1 else 0), done.stdout + done.stderr
        assert attempt == 1 or "Traceback" not in done.stderr
        arguments = [f"resume={(tmp_path / 'results' / 'latest').resolve()}"]
    start = json.loads((tmp_path / "results" / "latest" / "run.json").read_text())["attempts"][1]["from_step"]
    found = []
    for rank in range(len([*tmp_path.glob("ids2-*")])):
        before, after = ((tmp_path / f"ids{n}-{rank}").read_text().splitlines() for n in (1, 2))
        found.append([[*map(int, line.split())] for line in [*before[:start], *after]])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES[:2])
@pytest.mark.parametrize("kind", ["tf.data", "PyDataset", "own", "own tf.data"])
def test_each_row_once_on_two_ranks_after_a_kill(tmp_path, train, require, kind, strategy) -> None:
    require(strategy != "horovod" or not horovod_problem("tensorflow"), "run `make horovod`")
    split = ["data.split=own"] if kind.startswith("own") else []
    first, second = train_ids(tmp_path, train, kind, f"strategy={strategy}", *split)
    assert [len(step) for step in first] == [len(step) for step in second] == [12] * 20
    for epoch in (slice(0, 10), slice(10, 20)):
        assert sorted(i for step in (*first[epoch], *second[epoch]) for i in step) == list(range(240))
    assert (first[0] != first[10]) is (kind in ("tf.data", "PyDataset"))


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_a_rank_that_ends_earlier_starts_its_data_again(tmp_path, train, require, strategy) -> None:
    require(strategy != "horovod" or not horovod_problem("tensorflow"), "run `make horovod`")
    words = ("data.split=own", "trainer.limit_train_batches=14", f"strategy={strategy}")
    found = train_ids(tmp_path, train, "uneven", *words)
    for rank, keys in zip(found, (list(range(100)), list(range(100, 240))), strict=True):
        assert [i for step in rank for i in step] == (keys * 3)[: len(rank) * 10] and len(rank) == 28


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tf.data", "PyDataset"])
def test_several_devices_of_a_process_share_each_batch(tmp_path: Path, train: Any, kind: str) -> None:
    words = [*WORDS, f"data.kind={kind}", f"paths.results={tmp_path}", "strategy=mirrored"]
    done = train(*words, env={"IDS": f"{tmp_path}/ids"})
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [[*map(int, line.split())] for line in (tmp_path / "ids-0").read_text().splitlines()]
    assert len(steps) == 40
    assert sorted(i for step in steps[:20] for i in step) == list(range(240))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("own tf.data", (), "starts with other rows on each rank. Does it give each rank rows of its own?"),
        ("own", (), "which 2 ranks or devices can't share: each would read all of it"),
        ("equal", ("data.split=own",), "data.split=own: ranks read the same first batch; give each"),
        ("tf.data", ("data.split=own", "strategy=mirrored"), "data.split=own needs a process for each"),
    ],
)
def test_streams_that_are_refused(tmp_path, train, kind, words, message) -> None:
    chosen = ("strategy=multiworker_mirrored", *words, f"data.kind={kind}", f"paths.results={tmp_path}")
    done = train(*WORDS, *chosen, env={"IDS": f"{tmp_path}/ids"})
    assert done.returncode and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_rows_are_shared_and_no_replica_has_none() -> None:
    data = tf.data.Dataset.from_tensor_slices((np.arange(14), {"y": np.arange(14) * 2})).batch(6)

    def shares(ranks: range, count: int, train: bool = True) -> list[list[int]]:
        return [x.tolist() for x, _ in share_rows(data, ranks, count, train).as_numpy_iterator()]

    assert shares(range(1), 2) == [[0, 1, 2], [6, 7, 8], [12]]
    assert shares(range(1, 3), 3) == [[2, 3], [4, 5], [8, 9], [10, 11], [12], [13]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="DataError: a batch has fewer rows than"):
        shares(range(1), 3, train=False)
    exact = data.take(2).map(lambda x, y: (tf.ensure_shape(x, [6]), y))
    assert share_rows(exact, range(1), 2, True).element_spec[0].shape == [3]
