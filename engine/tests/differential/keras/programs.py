"""A user's models, data and callbacks made from a drawn program, the `SPEC` of this process."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from engine.tests.differential.keras.specs import Spec

SPEC: Spec = {}
COLUMNS = 3
WEIGHTS = {0: 1.0, 1: 3.0}

MADE: list[keras.callbacks.Callback] = []
"""The callbacks that this process has made."""


class Seen(keras.layers.Layer):
    """Adds all rows to a hash in their order, as a weight of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.hash = self.add_weight(
            shape=(), dtype="int64", initializer="zeros", trainable=False, name="hash"
        )

    def call(self, x: Any) -> Any:
        ids = tf.cast(tf.round(x[:, 0] * 64), tf.int64)
        places = tf.cast(tf.range(tf.shape(ids)[0]), tf.int64) + 1
        self.hash.assign((self.hash.value * 1000003 + tf.reduce_sum((ids + 7) * places)) % 2**40)
        return x

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class AddsLoss(keras.layers.Layer):
    """Adds a loss of the activity."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def body(ranks: bool) -> list[keras.layers.Layer]:
    """Return the layers of the model."""
    has = SPEC["layers"]
    masked = [keras.layers.Masking()] if SPEC["form"] == "masked" else []
    sequences = [keras.layers.Reshape((COLUMNS, 1)), *masked, keras.layers.GRU(4)]
    return [
        *([] if ranks else [Seen()]),
        *(sequences if SPEC["form"] in ("sequences", "masked") else []),
        keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2" if "regularizer" in has else None),
        *([keras.layers.BatchNormalization()] if "batch norm" in has else []),
        *([keras.layers.Dropout(0.3)] if "dropout" in has else []),
        *([AddsLoss()] if "add_loss" in SPEC["own"] else []),
        keras.layers.Dense(1),
    ]


class Base(keras.Model):
    """A subclassed model with its own metrics."""

    def __init__(self, ranks: bool) -> None:
        super().__init__()
        self.parts = body(ranks)
        if {"train_step", "test_step"} & {*SPEC["own"]}:
            self.total, self.error = (
                keras.metrics.Mean(name="total"),
                keras.metrics.MeanSquaredError(name="error"),
            )

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.parts:
            x = (
                layer(x, training=training)
                if isinstance(layer, keras.layers.Dropout | keras.layers.BatchNormalization)
                else layer(x)
            )
        return x

    def measure(self, data: Any, training: bool) -> tuple[Any, Any, Any, Any]:
        """Return the loss, the labels, the predictions and the weights."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        predicted = self(x, training=training)
        return self.compute_loss(x, y, predicted, weight), y, predicted, weight

    def returned(self, loss: Any, y: Any, predicted: Any, weight: Any) -> dict[str, Any]:
        """Return what the drawn form of a step returns."""
        self.total.update_state(loss, sample_weight=tf.shape(y)[0])
        self.error.update_state(y, predicted)
        kind = SPEC["returns"]
        if kind == "metrics":
            return self.compute_metrics(None, y, predicted, weight)
        if kind == "same names":
            return {m.name: m.result() for m in self.metrics if m.name in ("total", "error")} | {"loss": loss}
        values = {"loss": self.total.result(), "good": 1 - self.error.result()}
        if kind == "nested":
            return {"inner": values, "error": self.error.result()}
        if kind == "raw":
            return {"loss": loss, "last": tf.reduce_mean(predicted)}
        return values | ({"raw": loss, "step": self.optimizer.iterations} if kind == "mixed" else {})


def own_train_step(self: Base, data: Any) -> dict[str, Any]:
    """Make a step as in Keras' guides."""
    with tf.GradientTape() as tape:
        loss, y, predicted, weight = self.measure(data, True)
    gradients = tape.gradient(loss, self.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
    return self.returned(loss, y, predicted, weight)


def own_test_step(self: Base, data: Any) -> dict[str, Any]:
    """Evaluate a batch as in Keras' guides."""
    return self.returned(*self.measure(data, False))


def own_compute_loss(
    self: Any,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
) -> Any:
    """Return a loss that is not compiled."""
    losses = keras.ops.abs(y_pred - y) ** 1.5
    if sample_weight is not None:
        losses = losses * keras.ops.reshape(keras.ops.cast(sample_weight, "float32"), (-1, 1))
    return keras.ops.mean(losses) + sum(self.losses)


def own_compile(self: Any, optimizer: Any, factor: float = 1.0, **more: Any) -> None:
    """A layer with its own argument."""
    keras.Model.compile(self, optimizer=optimizer, **more)
    self.factor = factor


def make_optimizer() -> keras.optimizers.Optimizer:
    """Return the drawn optimizer."""
    sgd, schedules = keras.optimizers.SGD, keras.optimizers.schedules
    return {
        "sgd": lambda: sgd(0.05),
        "momentum": lambda: sgd(0.05, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "scheduled": lambda: keras.optimizers.AdamW(schedules.ExponentialDecay(0.02, 2, 0.7)),
        "clipped": lambda: sgd(0.1, global_clipnorm=0.1),
        "accumulating": lambda: keras.optimizers.Adam(0.02, gradient_accumulation_steps=2),
        "averaging": lambda: sgd(0.05, use_ema=True, ema_momentum=0.5),
    }[SPEC["optimizer"]]()


def difference(y: Any, predicted: Any) -> Any:
    """A metric that is a function."""
    return keras.ops.mean(predicted - y, axis=-1)


def make_model(ranks: bool = False) -> keras.Model:
    """Return the compiled model of the program."""
    keras.utils.set_random_seed(3)
    own = SPEC["own"]
    if SPEC["model"] == "functional":
        inputs = outputs = keras.Input((COLUMNS,))
        for layer in body(ranks):
            outputs = layer(outputs)
        both = {"one": outputs, "two": keras.layers.Dense(1, name="two")(outputs)}
        model = keras.Model(
            {"x": inputs} if SPEC["form"] == "dict" else inputs,
            both if SPEC["form"] == "two outputs" else outputs,
        )
    else:
        methods = {
            "train_step": own_train_step, "test_step": own_test_step, "compute_loss": own_compute_loss, "compile": own_compile,
        }  # fmt: skip
        model = type("Net", (Base,), {name: methods[name] for name in own if name in methods})(ranks)
    for spec in SPEC["callbacks"]:
        if spec["kind"] == "state":
            model.state = CHANGES[spec["state"][0]][0]()
    known = {"mae": "mae", "rmse": keras.metrics.RootMeanSquaredError(name="rmse"), "function": difference}
    loss = None if {"compute_loss"} & {*own} else SPEC["loss"]
    if "add_loss" in own and "train_step" not in own and SPEC["loss"] == "huber":
        loss = None
    model.compile(
        optimizer=make_optimizer(),
        loss={"one": loss, "two": "mae"} if SPEC["form"] == "two outputs" else loss,
        metrics=[known[name] for name in SPEC["metrics"]] or None,
        weighted_metrics=list(SPEC["weighted"]) or None,
        run_eagerly=SPEC["eager"],
        steps_per_execution=SPEC["calls"],
        **({"factor": 2.0} if "compile" in own and SPEC["model"] == "subclass" else {}),
    )
    return model


def rows_of(split: str) -> tuple[np.ndarray, ...]:
    """Return the arrays of a split. The first column is the number of the row in 64ths."""
    count = {"train": SPEC["rows"], "val": 7, "test": 6}[split]
    r = np.random.default_rng(["train", "val", "test"].index(split))
    x = r.normal(size=(count, COLUMNS)).astype("float32")
    x[:, 0] = np.arange(count) / 64
    y = (
        (x[:, 1:2] > 0).astype("float32")
        if SPEC["class_weight"]
        else (x[:, 1:2] * 2 - x[:, 2:]).astype("float32")
    )
    return (x, y, (1 + np.arange(count) % 3).astype("float32")) if SPEC["weights"] else (x, y)


class Batches(keras.utils.PyDataset):
    """Batches, the last one smaller, in another order after each epoch."""

    def __init__(self, arrays: tuple[np.ndarray, ...], batch: int) -> None:
        super().__init__()
        self.arrays, self.batch, self.shift = arrays, batch, 0
        self.length = self.whole = -(-len(arrays[0]) // batch)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        number = (number + self.shift) % self.whole
        part = slice(number * self.batch, (number + 1) * self.batch)
        return tuple(array[part] for array in self.arrays)

    def on_epoch_end(self) -> None:
        self.shift += 1


def open_split(split: str) -> Any:
    """Return the data of a split as a user would."""
    kind, arrays, batch = SPEC[split], rows_of(split), SPEC["batch"]
    if kind == "tf.data":
        x, y, *more = arrays
        named = (
            {"x": x} if SPEC["form"] == "dict" else x,
            {"one": y, "two": y} if SPEC["form"] == "two outputs" else y,
        )
        data = tf.data.Dataset.from_tensor_slices((*named, *more))
        return (data.shuffle(8, seed=4) if SPEC["shuffled"] and split == "train" else data).batch(batch)
    if kind == "PyDataset":
        return Batches(arrays, batch)
    if kind == "generator":
        return endless(arrays, batch)
    return arrays if kind else None


def endless(arrays: tuple[np.ndarray, ...], batch: int) -> Iterator[Any]:
    """Yield batches for ever, across the ends of the data."""
    start, count = 0, len(arrays[0])
    while True:
        chosen = (start + np.arange(batch)) % count
        yield tuple(array[chosen] for array in arrays)
        start += batch


def open_data() -> dict[str, Any]:
    """Return the splits for the engine, with class weights as sample weights."""
    splits = {name: found for name in ("train", "val", "test") if (found := open_split(name)) is not None}
    if SPEC["class_weight"]:
        x, y = splits["train"]
        splits["train"] = (x, y, np.array([WEIGHTS[int(label)] for label in y[:, 0]], "float32"))
    return splits


class Recorder(keras.callbacks.Callback):
    """Records its hooks with their logs in an attribute, which a resumed run continues."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec, self.calls, self.count = repr(spec), [], 0
        for hook in spec["hooks"] if not spec["stops"] else {*spec["hooks"], spec["stops"][0]}:
            setattr(type(self), hook, recording(hook, spec))

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.known = dict(params)


def recording(hook: str, spec: Spec) -> Any:
    """Return the method of a hook."""

    def record(self: Recorder, number: Any = None, logs: Any = None) -> None:
        if hook in ("on_train_begin", "on_train_end", "on_test_begin", "on_test_end"):
            number, logs = None, number if logs is None else logs
        values = {key: float(value) for key, value in (logs or {}).items()}
        self.calls.append([hook, number, values, int(self.model.optimizer.iterations)])
        if spec["adds"] and hook == "on_epoch_end":
            logs["val_added"], logs["added"] = 1.5 + number, 2.5
        if spec["stops"] and hook == spec["stops"][0]:
            self.count += 1
            if self.count == spec["stops"][1]:
                self.model.stop_training = True

    return record


class Kept:
    """An object with a counter."""

    count = 0


CHANGES: dict[str, tuple[Any, Any]] = {
    "number": (float, lambda o: setattr(o, "state", o.state + 0.5) or o.state),
    "list": (list, lambda o: o.state.append(len(o.state)) or sum(o.state)),
    "deque": (lambda: deque(maxlen=3), lambda o: o.state.append(sum(o.state) % 7 + 1) or sum(o.state)),
    "dict": (lambda: {"a": {1: 0}}, lambda o: o.state["a"].update({1: o.state["a"][1] + 1}) or o.state["a"][1]),
    "set": (set, lambda o: o.state.add(len(o.state)) or len(o.state)),
    "generator": (lambda: np.random.default_rng(1), lambda o: o.state.random()),
    "array": (lambda: np.zeros(2), lambda o: float(np.add(o.state, 1, out=o.state).sum())),
    "object": (Kept, lambda o: setattr(o.state, "count", o.state.count + 1) or o.state.count),
}  # fmt: skip
"""How a kind of state is made, and how a step changes it and gets a number."""


class Changing(keras.callbacks.Callback):
    """Changes its state, or that of the model, in each step, and a weight by it."""

    def __init__(self, kind: str, where: str) -> None:
        super().__init__()
        self.kind, self.where, self.state = kind, where, CHANGES[kind][0]()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        value = CHANGES[self.kind][1](self if self.where == "callback" else self.model)
        weight = self.model.trainable_variables[-1]
        weight.assign(weight + 1e-3 * value)


def make_callback(number: int) -> keras.callbacks.Callback:
    """Return a callback of the program."""
    spec = SPEC["callbacks"][number]
    known = keras.callbacks
    if spec["kind"] == "rate":
        callback: Any = known.LearningRateScheduler(next_rate)
    elif spec["kind"] == "plateau":
        callback = known.ReduceLROnPlateau("val_loss" if SPEC["val"] else "loss", patience=1, min_delta=1.0)
    elif spec["kind"] == "stopping":
        callback = known.EarlyStopping("val_loss" if SPEC["val"] else "loss", patience=1, min_delta=1.0)
        callback.restore_best_weights = SPEC["epochs"] == 3
    elif spec["kind"] == "state":
        callback = Changing(*spec["state"])
    else:
        callback = type("Recorder", (Recorder,), {})(spec)
    MADE.append(callback)
    return callback


def next_rate(epoch: int, rate: float) -> float:
    """Return the learning rate of an epoch."""
    return rate * 0.5
