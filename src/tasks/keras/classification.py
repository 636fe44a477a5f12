"""Classification: cross-entropy and accuracy. This file needs only Keras."""

from typing import Any

import keras


def classification(network: keras.Model, optimizer: Any = "adamw") -> keras.Model:
    """Return the network, compiled for images float32 [b, ...] and class numbers int [b].

    Args:
        network: maps images to logits [b, classes].
        optimizer: a Keras optimizer or its name; `train.py` passes the one of `optimizer=` with its schedule.
    """
    network.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
    )
    return network
