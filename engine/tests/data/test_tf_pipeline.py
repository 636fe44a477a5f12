import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from src.data.digits import open_digits
from src.data.imagefolder import open_imagefolder
from tools.testing.processes import run_python
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.tf.pipeline import Samples, plain_data_errors, read_batches, to_arrays
from train_anywhere.errors import DataError

ROOT = Path(__file__).parents[3]


def training(
    dataset: Any, order: BatchOrder, start: tuple[int, int] = (0, 0), per_epoch: int | None = None
) -> tf.data.Dataset:
    """Return endless training batches from an epoch and batch on."""
    per_epoch = per_epoch or len(dataset) // order.batch_size
    first = start[0] * per_epoch + start[1]
    return read_batches(dataset, replace(order, drop_last=True), 0, first, per_epoch=per_epoch)


def evaluation(dataset: Any, batch_size: int, start: int = 0, stop: int | None = None) -> tf.data.Dataset:
    """Return evaluation batches of a single rank."""
    stop = len(dataset) // batch_size if stop is None else stop
    return read_batches(dataset, BatchOrder(batch_size, seed=0), 0, start, stop)


def arrays(dataset: tf.data.Dataset) -> list[np.ndarray]:
    """Images and labels of all batches, each stacked."""
    return [np.stack(part) for part in zip(*dataset.as_numpy_iterator(), strict=True)]


def in_new_process(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code from the repository root: a process has only one of the frameworks."""
    return run_python("-c", script, *map(str, arguments), env={**os.environ, **environment})


TORCH_EPOCHS = """
import sys
import numpy as np
from src.data.imagefolder import open_imagefolder
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.loader import Batches, torch_loader

folder, out = sys.argv[1:]
train = open_imagefolder(folder, 16, 3, 0).train
order = BatchOrder(4, seed=4, rank=1, world_size=2, train=True, drop_last=True)
loader = torch_loader(Batches(train, order), workers=2)
loader.sampler.start_at(1, 1)
batches = list(loader)
loader.sampler.set_epoch(2)
batches += list(loader)
image, label = (np.stack(part) for part in zip(*batches))
assert "tensorflow" not in sys.modules
np.savez(out, image=image, label=label)
"""


def test_same_batches_as_torch_bit_for_bit(picture_dir: Path, tmp_path: Path) -> None:
    done = in_new_process(TORCH_EPOCHS, picture_dir, tmp_path / "torch.npz")
    assert done.returncode == 0, done.stderr
    train = open_imagefolder(str(picture_dir), 16, 3, 0).train
    order = BatchOrder(4, seed=4, rank=1, world_size=2, train=True)
    theirs = np.load(tmp_path / "torch.npz")
    count = len(theirs["label"])
    assert count == 2 * (len(train) // 4) - 1
    ours = arrays(training(train, order, (1, 1)).take(count))
    for array, name in zip(ours, ("image", "label"), strict=True):
        np.testing.assert_array_equal(array, theirs[name])


def test_shapes_are_static_and_evaluation_covers_the_set_once() -> None:
    val = open_digits().val
    whole, last = evaluation(val, 64), evaluation(val, 64, 2, 3)
    assert [tuple(spec.shape) for spec in tf.nest.flatten(whole.element_spec)] == [(64, 8, 8, 1), (64,)]
    assert [int(dataset.cardinality()) for dataset in (whole, last)] == [2, 1]
    labels = np.concatenate([batch[1] for dataset in (whole, last) for batch in dataset.as_numpy_iterator()])
    assert labels.tolist() == val.labels.tolist()


def test_training_is_endless() -> None:
    dataset = training(open_digits().train, BatchOrder(1024, seed=0, train=True))
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert len(list(dataset.take(7))) == 7


def test_an_epoch_cut_short_is_followed_by_the_next() -> None:
    train, order = open_digits().train, BatchOrder(128, seed=0, train=True)
    _, labels = arrays(training(train, order, per_epoch=3).take(6))
    _, whole = arrays(training(train, order).take(18))
    np.testing.assert_array_equal(labels, np.concatenate([whole[:3], whole[9:12]]))


def test_no_sharding_by_tensorflow_on_top() -> None:
    options = evaluation(open_digits().val, 64).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert options.deterministic


DAMAGED = """
import sys
from pathlib import Path
from src.data.imagefolder import open_imagefolder
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.tf.pipeline import plain_data_errors, read_batches
from train_anywhere.errors import DataError

train = open_imagefolder(sys.argv[1], 16, 3, 0).train
try:
    with plain_data_errors():
        list(read_batches(train, BatchOrder(4, seed=0), 0, stop=len(train) // 4))
except DataError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_damaged_picture_is_one_sentence_and_nothing_else(picture_dir: Path) -> None:
    path = picture_dir / "train" / "cat" / "cat_3.jpeg"
    path.write_bytes(b"nonsense")
    done = in_new_process(DAMAGED, picture_dir, TF_CPP_MIN_LOG_LEVEL="2")
    assert (
        done.stdout.startswith(f"{path} is not a picture that can be read") and done.stdout.count("\n") == 1
    )
    assert "Traceback" not in done.stderr


def test_other_errors_of_tensorflow_are_unchanged() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError), plain_data_errors():
        tf.debugging.assert_equal(1, 2)


def test_ranks_share_the_last_rows_of_an_evaluation() -> None:
    """Fewer rows than ranks go into the batch before them."""
    val, orders = open_digits().val, [BatchOrder(4, seed=0, rank=rank, world_size=2) for rank in range(2)]
    five = val.part(np.arange(5))
    parts = [read_batches(five, order, 0, stop=order.batches(5)).as_numpy_iterator() for order in orders]
    assert [[y.tolist() for _, y in batches] for batches in parts] == [
        [val.labels[:3].tolist()],
        [val.labels[3:5].tolist()],
    ]
    with pytest.raises(DataError, match="an evaluation of 1 rows can't be shared by 2 ranks"):
        read_batches(val.part(np.arange(1)), orders[0], 0, stop=1)


class Table:
    """Rows of three types by name, one of them as long as its text."""

    WORDS = ("a", "bb", "ä", "dddd")

    def __len__(self) -> int:
        return len(self.WORDS)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        words = [self.WORDS[i] for i in indices]
        width = max(map(len, words))
        tokens = np.array([[ord(c) for c in word.ljust(width)] for word in words])
        return {"text": np.array(words), "tokens": tokens, "flag": np.array([len(w) > 1 for w in words])}


def test_rows_by_name_of_any_type_and_length() -> None:
    dataset = evaluation(Table(), 2)
    assert {k: (v.dtype, v.shape.as_list()) for k, v in dataset.element_spec.items()} == {
        "text": (tf.string, [2]),
        "tokens": (tf.int64, [2, None]),
        "flag": (tf.bool, [2]),
    }
    first, second = dataset.as_numpy_iterator()
    assert [w.decode() for w in (*first["text"], *second["text"])] == list(Table.WORDS)
    assert first["tokens"].shape == (2, 2) and second["tokens"].shape == (2, 4)


def test_half_a_surrogate_pair_is_a_string() -> None:
    for strings in (np.array(["a\ud800"]), np.array(["a\ud800"], object)):
        assert to_arrays(strings, "data").tolist() == [b"a\xed\xa0\x80"]


def test_a_row_of_another_type_is_one_sentence() -> None:
    class Odd(Table):
        def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray]:
            return (np.zeros(len(indices), np.float64 if 1 in indices else np.float32),)

    dataset = evaluation(Odd(), 2)
    with (
        pytest.raises(DataError, match=r"returns float64 \[2\] after float32"),
        plain_data_errors(),
    ):
        list(dataset)


@pytest.mark.parametrize("odd", [[None], [{1}]])
def test_what_is_no_tensor_is_refused(odd: list) -> None:
    class Odd(Table):
        def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple:
            return (np.array(odd * len(indices), object),)

    with pytest.raises(DataError, match="can't be a tensor; return numbers, strings or arrays"):
        evaluation(Odd(), 2)


class Noisy:
    """Each sample is drawn when it is read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[np.ndarray, float]:
        return np.random.normal(size=2), random.random()


def test_a_drawn_sample_depends_on_seed_epoch_and_index_alone() -> None:
    first, again = Samples(Noisy(), seed=3), Samples(Noisy(), seed=3)
    rows = BatchOrder(4, seed=3, train=True).rows(8, 1, 0)
    whole = first.read(rows, 1, True)
    for n, row in enumerate(rows):  # as another rank would read it, or a resumed run
        alone = again.read(np.array([row]), 1, True)
        for one, several in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(one[0], several[n])
    for other in (first.read(rows, 2, True), Samples(Noisy(), seed=4).read(rows, 1, True)):
        assert not np.array_equal(other[0], whole[0])


def test_reading_changes_no_other_random_number() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    Samples(Noisy(), seed=3).read(np.arange(4), 0, True)
    assert (random.random(), np.random.random()) == expected
