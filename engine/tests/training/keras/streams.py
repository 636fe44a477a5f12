"""Streams of images whose first pixel is the id / 1000, and a model that writes the ids of its steps."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from engine.tests.data.id_tasks import note
from engine.tests.data.shard_files import image

KEYS, BATCH = range(240), 24
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Ids(keras.Model):
    """Writes the ids of the rows of each training step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(7)
        self.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def call(self, images: Any) -> Any:
        return self.dense(keras.ops.reshape(images, (-1, 16)))

    def train_step(self, data: Any) -> Any:
        pixels = data[0][:, 0, 0, 0]
        tf.numpy_function(note, [pixels, tf.ones_like(pixels)], [])
        return super().train_step(data)


def rows(keys: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([image(int(key)) for key in keys]), np.array([int(key) % 7 for key in keys])


class Sequence(keras.utils.PyDataset):
    """Batches by index, in another order in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.array(KEYS)

    def __len__(self) -> int:
        return len(KEYS) // BATCH

    def __getitem__(self, number: int) -> Any:
        return rows(self.order[number * BATCH : (number + 1) * BATCH])

    def on_epoch_end(self) -> None:
        self.order = np.roll(self.order, 50)


def batches_of(keys: Any, size: int) -> Iterator[Any]:
    for first in range(0, len(keys), size):
        yield rows(keys[first : first + size])


def open_stream(kind: str) -> Any:
    """Training and validation data of a kind."""
    mine, size = KEYS[RANK::RANKS], BATCH // RANKS
    data: Any = {
        "tf.data": lambda: tf.data.Dataset.from_tensor_slices(rows(KEYS)).shuffle(240).batch(BATCH),
        "unseeded": lambda: tf.data.Dataset.from_tensor_slices(rows([*KEYS[RANK:], *KEYS[:RANK]])).batch(24),
        "PyDataset": Sequence,
        "own": lambda: partial(batches_of, mine, size),
        "own tf.data": lambda: tf.data.Dataset.from_tensor_slices(rows(mine)).batch(size),
        "uneven": lambda: partial(batches_of, [KEYS[:100], KEYS[100:]][RANK], 10),
        "equal": lambda: partial(batches_of, KEYS, BATCH),
    }[kind]()
    return data, tf.data.Dataset.from_tensor_slices(rows(range(900, 937))).batch(8)
