"""A written Keras model answers as `predict`, or is not written."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from train_anywhere.data.array_data import check_answers
from train_anywhere.errors import CheckpointError
from train_anywhere.inference.evaluate_run import draft_export
from train_anywhere.training.keras.inference import export_model

layers = keras.layers
ROWS = np.random.default_rng(0).uniform(0, 255, (16, 8, 8, 3)).astype("float32")
TOKENS = np.random.default_rng(1).integers(0, 9, (16, 5)).astype("int32")


def augmented() -> keras.Model:
    """The usual recipe: without `training=False` BatchNormalization and Dropout are in training mode after RandomFlip."""
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3)(layers.RandomFlip()(layers.Rescaling(1 / 255)(inputs)))
    x = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x)))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def sequential() -> keras.Model:
    steps = (layers.RandomFlip(), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten())
    return keras.Sequential([*steps, layers.Dense(3)])


def two_inputs() -> keras.Model:
    image, tokens = keras.Input((8, 8, 3), name="image"), keras.Input((None,), name="tokens", dtype="int32")
    seen = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(layers.RandomFlip()(image)))
    read = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(tokens))
    answer = layers.Dense(3)(layers.Concatenate()([seen, read]))
    return keras.Model({"image": image, "tokens": tokens}, {"answer": answer})


@keras.saving.register_keras_serializable("test")
class Subclassed(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps = [layers.RandomFlip(), layers.BatchNormalization(), layers.Flatten(), layers.Dense(3)]

    def call(self, x: Any, training: bool | None = None) -> Any:
        for step in self.steps:
            x = step(x)
        return x


class Doubled(layers.Layer):
    def call(self, x: Any) -> Any:
        return 2 * x


def own_layer() -> keras.Model:
    return keras.Sequential([layers.Flatten(), Doubled(), layers.Dense(3)])


@pytest.mark.parametrize("make", [augmented, sequential, two_inputs, Subclassed, own_layer])
def test_exports_answer_as_predict_does(make, tmp_path, capsys) -> None:
    model = make()
    rows: Any = {"image": ROWS, "tokens": TOKENS} if make is two_inputs else ROWS
    target = {"answer": np.zeros((16, 3))} if make is two_inputs else np.zeros((16, 3))
    model.compile("adam", "mse")
    model.fit(rows, target, epochs=2, batch_size=4, verbose=0)
    export_model(model, "savedmodel", tmp_path / "served", rows)
    export_model(model, "keras", tmp_path / "model.keras", rows)
    assert "not compared" not in capsys.readouterr().out
    some = tf.nest.map_structure(lambda array: array[:3], rows)  # another number of rows
    expected = tf.nest.flatten(model.predict(some, verbose=0))
    served = tf.saved_model.load(str(tmp_path / "served"))
    loaded = keras.saving.load_model(tmp_path / "model.keras", {"Doubled": Doubled})
    for answers in (served.serve(some), loaded.predict(some, verbose=0)):
        for one, other in zip(tf.nest.flatten(answers), expected, strict=True):
            assert np.allclose(one, other, atol=1e-5)


def test_a_model_that_is_always_in_training_mode_is_written_with_a_line(tmp_path, capsys) -> None:
    """Keras' own `predict` flips images at random if `call` takes no `training`."""

    class Plain(Subclassed):
        def call(self, x: Any) -> Any:
            return super().call(x)

    model = Plain()
    model.predict(ROWS, verbose=0)
    export_model(model, "savedmodel", tmp_path / "served", ROWS)
    assert "differ from call to call" in capsys.readouterr().out


def test_other_answers_leave_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match=r"differently from the trained one, by 0\.2 for values up to 1"),
        draft_export(tmp_path / "model.onnx") as path,
    ):
        path.write_bytes(b"graph")
        check_answers("onnx", [np.ones((4, 3))] * 2, np.full((4, 3), 1.2))
    assert not list(tmp_path.iterdir())
    with draft_export(tmp_path / "model.onnx") as path:
        path.write_bytes(b"graph")
        check_answers("onnx", [np.ones((4, 3))] * 2, np.full((4, 3), 1.00001))
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
