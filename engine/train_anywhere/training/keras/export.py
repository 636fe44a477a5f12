"""Write a trained Keras model so that the written model answers as `predict` does."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.data.array_data import check_answers
from train_anywhere.errors import CheckpointError
from train_anywhere.training.keras.dropin.gradients import find_layers


def inference_arguments(model: keras.Model) -> dict[str, bool]:
    """Return the arguments with which Keras' `predict` calls a model.

    Without `training=False` an augmentation layer puts all layers after it into training mode
    (https://github.com/keras-team/keras/issues/20985).
    """
    return {"training": False} if "training" in inspect.signature(model.call).parameters else {}


def export_model(model: keras.Model, format: str, path: Path, rows: Any) -> None:
    """Write a file for Keras ("keras") or a folder for serving ("savedmodel"), and compare its answers with `predict`.

    Args:
        model: the trained, built model.
        format: "keras" or "savedmodel".
        path: the new file or folder.
        rows: inputs of the model, arrays [n, ...], with which the answers are compared.

    Raises:
        CheckpointError: the model can't be written in this format, or the written model answers differently.
    """
    arguments = inference_arguments(model)
    expected = [model(rows, **arguments) for _ in range(2)]
    try:
        if format == "keras":
            classes = {type(layer).__name__: type(layer) for layer in find_layers(model)}
            with keras.saving.custom_object_scope(classes):
                type(model).from_config(model.get_config())  # fails now rather than when Keras opens the file
            model.compiled = False  # leaves out the optimizer, whose schedule is a class of this package
            model.save(path)
        else:
            archive, answer = keras.export.ExportArchive(), partial(model, **arguments)
            archive.track(model)
            known = getattr(model, "input", None)  # of a functional model: the shapes that it was made with
            signature = tf.nest.map_structure(
                lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), rows if known is None else known
            )
            archive.add_endpoint("serve", lambda inputs: answer(inputs), [signature])
            archive.write_out(str(path), verbose=False)
    except Exception as error:  # Keras raises many types for a model that it can't serialize
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        other = "; use --export savedmodel." if format == "keras" else "."
        raise CheckpointError(
            f"--export {format}: this model can't be written so: {why.rstrip('.')}{other}"
        ) from error
    if format == "keras":
        try:
            read = partial(keras.saving.load_model(path, classes, compile=False), **arguments)
        except Exception:  # own functions in the model, which the reader of the file has to name
            print(
                "keras: not compared with the trained model: to load it, pass your functions as custom_objects."
            )
            return
    else:
        served = tf.saved_model.load(str(path))  # its functions do not keep its variables alive
        read = served.serve
    check_answers(format, expected, read(rows), half=model.compute_dtype != "float32")
