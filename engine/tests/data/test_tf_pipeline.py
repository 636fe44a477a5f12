import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from src.data.digits import open_digits
from src.data.imagefolder import open_imagefolder
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.tf.arrays import to_arrays
from train_anywhere.data.tf.pipeline import plain_data_errors, tf_dataset
from train_anywhere.errors import DataError

ROOT = Path(__file__).parents[3]


def arrays(dataset: tf.data.Dataset) -> list[np.ndarray]:
    """Images, labels and weights of all batches, each stacked."""
    flat = ((*batch, weight) for batch, weight in dataset.as_numpy_iterator())
    return [np.stack(part) for part in zip(*flat, strict=True)]


def in_new_process(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code from the repository root: a process has only one of the frameworks."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


TORCH_EPOCHS = """
import sys
import numpy as np
from pathlib import Path
from src.data.imagefolder import open_imagefolder
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.loader import Batches, torch_loader
from train_anywhere.data.torch.samples import Reader

folder, out = sys.argv[1:]
train = open_imagefolder(folder, 16, 3, 0).train
order = BatchOrder(8, seed=4, rank=1, world_size=2, train=True)
loader = torch_loader(Batches(Reader(train, 4), order, True), workers=2, start_epoch=1, start_batch=1)
batches = list(loader)
loader.sampler.set_epoch(2)
batches += list(loader)
image, label, weight = (np.stack(part) for part in zip(*((*batch.rows, batch.weight) for batch in batches)))
assert "tensorflow" not in sys.modules
np.savez(out, image=image, label=label, weight=weight)
"""


def test_same_batches_as_torch_bit_for_bit(picture_dir: Path, tmp_path: Path) -> None:
    done = in_new_process(TORCH_EPOCHS, picture_dir, tmp_path / "torch.npz")
    assert done.returncode == 0, done.stderr
    train = open_imagefolder(str(picture_dir), 16, 3, 0).train
    order = BatchOrder(8, seed=4, rank=1, world_size=2, train=True)
    ours = arrays(tf_dataset(train, order, workers=2, start_epoch=1, start_batch=1, epochs=3))
    theirs = np.load(tmp_path / "torch.npz")
    assert len(ours[1]) == 3
    for array, name in zip(ours, ("image", "label", "weight"), strict=True):
        np.testing.assert_array_equal(array, theirs[name])


def test_shapes_are_static_and_evaluation_covers_the_set_once() -> None:
    val = open_digits().val
    dataset = tf_dataset(val, BatchOrder(64, seed=0), epochs=1)
    assert [tuple(spec.shape) for spec in tf.nest.flatten(dataset.element_spec)] == [
        (64, 8, 8, 1),
        (64,),
        (64,),
    ]
    assert int(dataset.cardinality()) == 3
    _, labels, weights = arrays(dataset)
    assert labels[weights > 0].tolist() == val.labels.tolist()


def test_endless_without_a_number_of_epochs() -> None:
    dataset = tf_dataset(open_digits().train, BatchOrder(1024, seed=0, train=True))
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert len(list(dataset.take(7))) == 7


def test_an_epoch_cut_short_is_followed_by_the_next() -> None:
    train = open_digits().train
    _, labels, _ = arrays(tf_dataset(train, BatchOrder(128, seed=0, train=True), epochs=2, limit_batches=3))
    _, whole, _ = arrays(tf_dataset(train, BatchOrder(128, seed=0, train=True), epochs=2))
    np.testing.assert_array_equal(labels, np.concatenate([whole[:3], whole[10:13]]))


def test_no_sharding_by_tensorflow_on_top() -> None:
    options = tf_dataset(open_digits().val, BatchOrder(64, seed=0)).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert options.deterministic


DAMAGED = """
import sys
from pathlib import Path
from src.data.imagefolder import open_imagefolder
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.tf.arrays import to_arrays
from train_anywhere.data.tf.pipeline import plain_data_errors, tf_dataset
from train_anywhere.errors import DataError

train = open_imagefolder(sys.argv[1], 16, 3, 0).train
try:
    with plain_data_errors():
        list(tf_dataset(train, BatchOrder(4, seed=0, train=True), epochs=1))
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


def test_impossible_batches_are_refused() -> None:
    train = open_digits().train
    with pytest.raises(DataError, match=r"data\.batch_size=2048"):
        tf_dataset(train, BatchOrder(2048, seed=0, train=True))
    with pytest.raises(DataError, match="3 ranks"):
        tf_dataset(train, BatchOrder(64, seed=0, world_size=3, train=True))


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

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        return np.array([len(self.WORDS[i]) for i in indices])


def test_rows_by_name_of_any_type_and_length() -> None:
    dataset = tf_dataset(Table(), BatchOrder(2, seed=0), epochs=1)
    batch, _ = dataset.element_spec
    assert {k: (v.dtype, v.shape.as_list()) for k, v in batch.items()} == {
        "text": (tf.string, [2]),
        "tokens": (tf.int64, [2, None]),
        "flag": (tf.bool, [2]),
    }
    (first, weight), (second, _) = dataset.as_numpy_iterator()
    assert [w.decode() for w in (*first["text"], *second["text"])] == list(Table.WORDS)
    assert first["tokens"].shape == (2, 2) and second["tokens"].shape == (2, 4)
    np.testing.assert_allclose(weight, [2 / 3, 4 / 3], rtol=1e-6)  # rows count by their sizes


def test_half_a_surrogate_pair_is_a_string() -> None:
    for strings in (np.array(["a\ud800"]), np.array(["a\ud800"], object)):
        assert to_arrays(strings, "data").tolist() == [b"a\xed\xa0\x80"]


def test_what_prepare_makes_is_read() -> None:
    prepare = lambda batch: (batch["tokens"][:, :1].astype(np.float32), batch["flag"])  # noqa: E731
    dataset = tf_dataset(Table(), BatchOrder(2, seed=0), epochs=1, prepare=prepare)
    assert [s.shape.as_list() for s in dataset.element_spec[0]] == [[2, 1], [2]]


def test_a_row_of_another_type_is_one_sentence() -> None:
    class Odd(Table):
        def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray]:
            return (np.zeros(len(indices), np.float64 if 1 in indices else np.float32),)

    dataset = tf_dataset(Odd(), BatchOrder(2, seed=0), epochs=1)
    with (
        pytest.raises(DataError, match=r"returns float64 \[2\], but its first and last row have float32"),
        plain_data_errors(),
    ):
        list(dataset)


@pytest.mark.parametrize("odd", [[None], [{1}]])
def test_what_is_no_tensor_is_refused(odd: list) -> None:
    class Odd(Table):
        def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple:
            return (np.array(odd * len(indices), object),)

    with pytest.raises(DataError, match="can't be a tensor; return numbers, strings or arrays"):
        tf_dataset(Odd(), BatchOrder(2, seed=0), epochs=1)
