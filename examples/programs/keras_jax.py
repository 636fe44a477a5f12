"""Train a small Keras model on JAX, over all processes of the job: `pip install jax`, and for NVIDIA `jax[cuda12]`.

KERAS_BACKEND=jax python src/run.py trainer.devices=2 trainer.accelerator=cpu -- examples/programs/keras_jax.py
KERAS_BACKEND=jax python src/run.py cluster=slurm trainer.nodes=2 program.processes=node -- examples/programs/keras_jax.py

Any number of processes has the same losses: each computes its rows of the same global batches.
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from keras import layers

from train_anywhere.program import log

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
BATCH = 96


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """This process's rows of each global batch, in an order that depends on the epoch only."""

    def __init__(self, images: Any, labels: Any) -> None:
        super().__init__()
        self.images, self.labels, self.epoch = images, labels, 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.labels) // BATCH

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return images and labels of a batch."""
        order = np.random.default_rng([1, self.epoch]).permutation(len(self.labels))
        rows = order[index * BATCH : (index + 1) * BATCH][RANK * BATCH // WORLD : (RANK + 1) * BATCH // WORLD]
        return self.images[rows], self.labels[rows]

    def on_epoch_end(self) -> None:
        """Count epochs."""
        self.epoch += 1


def main() -> None:
    """Train for three epochs, and save the weights."""
    if WORLD > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # GPUs use NCCL
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        keras.distribution.initialize(address, WORLD, RANK)
    keras.utils.set_random_seed(1)
    if len(jax.devices()) > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    with np.load(Path(__file__).parents[2] / "src" / "data" / "digits.npz") as file:
        images, labels = (file["images"][:1152, ..., None] / 16).astype("float32"), file["labels"][:1152]
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss=loss, metrics=["accuracy"])
    report = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: log(epoch + 1, **logs))
    rows = Rows(images, labels.astype("int32"))
    history = model.fit(rows, epochs=3, shuffle=False, verbose=0, callbacks=[report])
    print(
        f"rank {RANK} of {WORLD}: losses {[f'{value:.6f}' for value in history.history['loss']]}", flush=True
    )
    if RANK == 0:
        weights = [np.array(weight) for weight in model.get_weights()]
        np.savez(Path(os.environ.get("TRAIN_LOCAL_CHECKPOINTS", "."), "weights.npz"), *weights)


if __name__ == "__main__":
    main()
