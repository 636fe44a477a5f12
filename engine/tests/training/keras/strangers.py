"""Models and data of users who do not know this project. Each works with `fit`."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS, COLUMNS = 100, 6


class Rows:
    """A map-style data set of (x, y), or of another `kind`."""

    def __init__(self, length: int = ROWS, seed: int = 0, kind: str = "tuple") -> None:
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(length, COLUMNS)).astype("float32")
        self.y = (self.x[:, :1] * 2 - self.x[:, 1:2] ** 2).astype("float32")
        self.kind = kind

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        if self.kind == "dict":
            return {"x": self.x[index], "name": f"row {index}"}, {
                "y": self.y[index],
                "big": self.y[index] > 0,
            }
        if self.kind == "weighted":
            return self.x[index], self.y[index], np.float32(1 + index % 3)
        return self.x[index], self.y[index]


def open_rows(kind: str = "tuple", length: int = ROWS) -> dict[str, Rows]:
    """`length` rows to train on, 37 and 21 to evaluate on."""
    return {"train": Rows(length, 0, kind), "val": Rows(37, 1, kind), "test": Rows(21, 2, kind)}


def open_tf(endless: bool = False) -> tuple[Any, Any]:
    """Batches of `tf.data`, shuffled."""
    train, val = (tf.data.Dataset.from_tensor_slices((rows.x, rows.y)) for rows in (Rows(), Rows(37, 1)))
    train = train.shuffle(50).batch(16, drop_remainder=True)
    return (train.repeat() if endless else train), val.batch(16)


class Idle(keras.Model):
    """Its step computes a loss, and forgets the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict:
        return {"loss": keras.ops.mean(self(data[0], training=True))}


class OwnStep(keras.Model):
    """A model with its own steps, metrics and dropout, whose first call creates the layers."""

    def __init__(self, hidden: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(hidden, activation="tanh")
        self.head = keras.layers.Dense(1)
        self.seeds = keras.random.SeedGenerator(7)
        self.rate = dropout
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.hidden(x)
        if training and self.rate:
            x = keras.random.dropout(x, self.rate, seed=self.seeds)
        return self.head(x)

    @property
    def metrics(self) -> list:
        return [self.loss_tracker, self.error]

    def train_step(self, data: Any) -> dict:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean((predicted - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._count(loss, predicted, y)

    def test_step(self, data: Any) -> dict:
        x, y = data
        predicted = self(x)
        return self._count(tf.reduce_mean((predicted - y) ** 2), predicted, y)

    def _count(self, loss: Any, predicted: Any, y: Any) -> dict:
        self.loss_tracker.update_state(loss, sample_weight=tf.cast(tf.shape(y)[0], tf.float32))
        self.error.update_state(y, predicted)
        return {m.name: m.result() for m in self.metrics} | {"raw": loss}


def compiled(optimizer: str | None = None, loss: str = "mse", eager: bool = False) -> keras.Model:
    """Return a functional model. Without an optimizer it takes that of the run."""
    x = keras.Input((COLUMNS,))
    y = keras.layers.Dense(1)(keras.layers.Dense(8, activation="relu")(x))
    model = keras.Model(x, y)
    metrics = ["mae", keras.metrics.RootMeanSquaredError(name="rmse")]
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics, run_eagerly=eager)
    return model


def lacking(name: str) -> keras.Model:
    """Return a model under a Keras that does not have private names, joined by +."""
    from train_anywhere.training.keras import private

    for constant in ("SUMS_GRADIENTS", "BUILDS", "RATE"):
        if getattr(private, constant) in name.split("+"):
            setattr(private, constant, "not_there")
    return compiled()


def deep() -> keras.Model:
    """Return a model so large that TensorFlow's graph optimizer could change its results."""
    model = keras.applications.ResNet50(weights=None, classes=10, classifier_activation=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.01, 0.9), loss=loss)
    return model


def open_noise(length: int = 32) -> dict[str, list[tuple[np.ndarray, int]]]:
    """Rows as large as `deep` takes them."""
    random = np.random.default_rng(0)
    rows = [(random.normal(size=(224, 224, 3)).astype("float32"), n % 10) for n in range(length)]
    return {"train": rows, "val": rows[:8]}


def summed() -> keras.Model:
    """Its loss is a sum over the rows of a batch."""
    model = without_loss()
    model.compile(optimizer=None, loss=keras.losses.MeanSquaredError(reduction="sum"))
    return model


def two_outputs() -> keras.Model:
    """Return a model with named inputs and outputs, a string input, two losses and metrics."""
    x, name = keras.Input((COLUMNS,), name="x"), keras.Input((), dtype="string", name="name")
    body = keras.layers.Dense(8, activation="relu")(x)
    outputs = {
        "y": keras.layers.Dense(1, name="y")(body),
        "big": keras.layers.Dense(1, activation="sigmoid", name="big")(body),
    }
    model = keras.Model({"x": x, "name": name}, outputs)
    model.compile(
        optimizer=None,
        loss={"y": "mse", "big": "binary_crossentropy"},
        loss_weights={"y": 1.0, "big": 0.5},
        metrics={"big": ["accuracy", keras.metrics.AUC(name="auc")]},
    )
    return model


def without_loss() -> keras.Model:
    """Neither compiled nor with a step."""
    return keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])


class Gan(keras.Model):
    """Two models with two own optimizers of one name and own noise. Only losses are returned."""

    def __init__(self, noise: bool = True) -> None:
        super().__init__()
        self.seeds, self.noise = keras.random.SeedGenerator(3), noise
        self.generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(COLUMNS)])
        self.critic = keras.Sequential(
            [keras.Input((COLUMNS,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        )
        self.g_optimizer = keras.optimizers.Adam(0.01)
        self.c_optimizer = keras.optimizers.Adam(0.02)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> dict:
        x, _ = data
        noise = keras.random.normal((tf.shape(x)[0], 4), seed=self.seeds) if self.noise else x[:, :4]
        with tf.GradientTape() as tape:
            real, fake = self.critic(x), self.critic(self.generator(noise))
            c_loss = self.loss_fn(tf.ones_like(real), real) + self.loss_fn(tf.zeros_like(fake), fake)
        variables = self.critic.trainable_variables
        self.c_optimizer.apply(tape.gradient(c_loss, variables), variables)
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise))
            g_loss = self.loss_fn(tf.ones_like(fake), fake)
        variables = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, variables), variables)
        return {"c_loss": c_loss, "g_loss": g_loss}


class UncompiledLoss(Idle):
    """Its step uses the compiled loss, and it has none."""

    def train_step(self, data: Any) -> dict:
        return {"loss": self.compute_loss(data[0], data[1], self(data[0]))}


class Unfinished(Idle):
    """A method that its step calls is not written yet."""

    def train_step(self, data: Any) -> dict:
        raise NotImplementedError("the penalty of this model")


def no_task(hidden: int = 3) -> keras.layers.Layer:
    """Something else."""
    return keras.layers.Dense(hidden)


class BareVariable(OwnStep):
    """Noise of `keras.random` without a generator, and a counter in a bare tf.Variable."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1)
            x = x + keras.random.normal(tf.shape(x)) * tf.cast(self.steps, x.dtype) / 10
        return super().call(x)


class Largest(keras.metrics.Metric):
    """A metric whose state is not a sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.most = self.add_variable(shape=(), initializer="zeros", name="most")

    def update_state(self, values: Any) -> None:
        self.most.assign(tf.maximum(self.most.value, tf.reduce_max(values)))

    def result(self) -> Any:
        return self.most


class OddMetric(OwnStep):
    """Counts with it."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = Largest()

    @property
    def metrics(self) -> list:
        return [*super().metrics, self.largest]


class Parting(OwnStep):
    """A model that changes weights by its own rows."""

    def train_step(self, data: Any) -> dict:
        logs = super().train_step(data)
        self.head.bias.assign_add(tf.reduce_mean(data[0], axis=(0, 1), keepdims=True)[0])
        return logs


class Heard:
    """A logger."""

    rows: list = []  # noqa: RUF012

    def log_metrics(self, metrics: dict, step: int) -> None:
        self.rows.append((step, metrics))

    def finalize(self, status: str) -> None:
        self.rows.append(status)


class OwnCompile(OwnStep):
    """Its `compile` needs more than an optimizer."""

    def compile(self, optimizer: Any, alpha: float, **more: Any) -> None:
        super().compile(optimizer=optimizer, **more)
        self.alpha = alpha


class LateLayer(OwnStep):
    """Adds a layer in its first step."""

    late = None

    def train_step(self, data: Any) -> dict:
        self.late = self.late or keras.layers.Dense(COLUMNS)
        return super().train_step((self.late(data[0]), data[1]))


class LateVariable(OwnStep):
    """Creates a bare variable of TensorFlow in its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list = []

    def train_step(self, data: Any) -> dict:
        if not self.late:
            self.late.append(tf.Variable(1.0, trainable=False))
        self.late[0].assign(self.late[0] * 0.9)
        return super().train_step((data[0] * self.late[0], data[1]))


class NewVariables(OwnStep):
    """Creates one in each step."""

    def train_step(self, data: Any) -> dict:
        return super().train_step((data[0] * tf.Variable(1.0, trainable=False), data[1]))


def one_stream() -> Any:
    """Nothing to validate with."""
    return open_tf()[0]


def validated(kind: str) -> dict[str, Any]:
    """Rows to train on, and a validation and a test of one kind."""
    rows = Rows(37, 1)
    batches = [(rows.x[n : n + 8], rows.y[n : n + 8]) for n in range(0, 37, 8)]

    class Iterable:
        def __iter__(self) -> Any:
            return iter(batches)

    kinds: dict[str, Any] = {
        "generator": lambda: (batch for batch in batches),
        "iterable": Iterable(),
    }
    return {"train": Rows(), "val": kinds[kind], "test": kinds[kind]}


def untested() -> list[Rows]:
    """Rows to train on and to validate, in a list."""
    return [Rows(), Rows(37, 1)]


def only_rows() -> dict[str, Rows]:
    """The same, by index."""
    return {"train": Rows()}


def divided_rows() -> tuple[list[Any], list[Any]]:
    """The first three quarters to train on."""
    rows = [Rows()[n] for n in range(ROWS)]
    return rows[: ROWS * 3 // 4], rows[ROWS * 3 // 4 :]


def named_arrays() -> dict[str, Any]:
    """Arrays with 64 bits and labels of TensorFlow's, in a dict of splits."""
    parts = {"train": Rows(), "validation": Rows(37, 1)}
    return {name: (rows.x.astype("float64"), tf.constant(rows.y)) for name, rows in parts.items()}


def read_once() -> tuple[Rows, Any]:
    """A validation that can be read once."""
    return Rows(), iter(open_tf()[1])


class Picky(keras.optimizers.SGD):
    """Takes anything, and refuses most of it."""

    def __init__(self, **options: Any) -> None:
        if "learning_rate" in options:
            raise ValueError("learning_rate is not for me.\nSee the manual.")
        super().__init__(**options)


class Halved(keras.callbacks.LearningRateScheduler):
    """Halves the learning rate at the start of each epoch."""

    def __init__(self) -> None:
        super().__init__(lambda epoch, lr: lr * 0.5)


class Reads(keras.callbacks.Callback):
    """Reads the loss at every batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert logs["loss"] is not None


class ReadsHistory(keras.callbacks.Callback):
    """Reads the history of the model where training begins and ends, as user code may."""

    begun: list = []  # noqa: RUF012
    ended: list = []  # noqa: RUF012

    def on_train_begin(self, logs: Any = None) -> None:
        self.begun.append(type(self.model.history))

    def on_train_end(self, logs: Any = None) -> None:
        self.ended.append((list(self.model.history.epoch), dict(self.model.history.history)))


class AddsMetrics(keras.callbacks.Callback):
    """Add a number and a string to an epoch's logs, and another number in the first one."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs |= {"val_other": 0.5 - epoch / 10, "text": "none", "learning_rate": 9.0}
        if epoch == 0:
            logs["norm"] = np.float32(2)


def two_validations() -> dict[str, Any]:
    """A list of data sets, which Keras does not evaluate one by one."""
    return {"train": Rows(), "val": [Rows(37, 1), Rows(37, 1)]}


class Unfreezes(keras.callbacks.Callback):
    """Trains all but the first layer, and from an epoch or a step of epoch 0 on that one too.

    Args:
        batch: of epoch 0; None: from epoch 1 on.
        rank: does so on this rank only; None: on all.
        again: also has the step traced again, as Keras needs it.

    Attributes:
        seen: its weights at each epoch's begin and end.
    """

    seen: list = []  # noqa: RUF012

    def __init__(self, batch: int | None = None, rank: int | None = None, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.batch, self.acts = batch, rank in (None, int(os.environ.get("RANK", 0)))
        self.seen.clear()

    def first(self) -> Any:
        return next(layer for layer in self.model.layers if layer.weights)

    def on_train_begin(self, logs: Any = None) -> None:
        self.first().trainable = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(self.first().get_weights()[0])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.on_epoch_end(epoch)
        if epoch == 1 and self.batch is None and self.acts:
            self.unfreeze()

    def unfreeze(self) -> None:
        self.first().trainable = True
        if self.again:
            self.model.make_train_function(force=True)


class UnfreezesWithin(Unfreezes):
    """The same at a step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == self.batch and not self.first().trainable:
            self.unfreeze()


def frozen(norm: bool = False) -> keras.Model:
    """The first layer was never trainable, so its optimizer state is missing, with batch norm."""
    x = keras.Input((COLUMNS,))
    body = keras.Sequential([keras.layers.Dense(8), *([keras.layers.BatchNormalization()] if norm else [])])
    body.trainable = False
    model = keras.Model(x, keras.layers.Dense(1)(body(x)))
    model.compile(optimizer=None, loss="mse")
    return model


class KeepsState(keras.callbacks.Callback):
    """Sets the learning rate by all kinds of plain attributes and counts its calls."""

    def __init__(self, odd: bool = False, log_dir: str = "a/b") -> None:
        super().__init__()
        self.odd = object() if odd else None
        self.begun: list = []
        self.rates, self.seen, self.phase, self.log_dir = {}, set(), "first", log_dir

    def on_train_begin(self, logs: Any = None) -> None:
        if self.model:
            self.model.optimizer.learning_rate = 0.03
            self.model.set_weights([weight * 0.5 for weight in self.model.get_weights()])
        self.mean, self.last, self.base = np.zeros(2, "float32"), (0, None), np.float32(0)
        self.rank = int(os.environ.get("RANK", 0))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.begun.append(epoch)
        self.odd = self.odd and object()
        self.rates[epoch] = 0.01 / (len(self.begun) + len(self.seen) + len(self.rates))
        self.model.optimizer.learning_rate = self.rates[epoch] * (1 + float(self.mean[1]))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.mean += np.float32(batch) / 100
        self.seen.add(batch % 4)
        self.base, self.last, self.phase = np.float32(batch), (batch, "x"), f"batch {batch}"
        if batch == 4:
            self.model.optimizer.learning_rate = 0.001 * len(self.phase) * float(self.base + self.last[0])


class Swaps(keras.callbacks.SwapEMAWeights):
    """Keras' own, with something more."""


class SwapsItself(keras.callbacks.Callback):
    """Validates other weights than it trains, and may change them when training ends."""

    def __init__(self, at_end: bool = False) -> None:
        super().__init__()
        self.at_end = at_end

    def on_test_begin(self, logs: Any = None) -> None:
        self.scale(1 if self.at_end else 0.5)

    def on_test_end(self, logs: Any = None) -> None:
        self.scale(1 if self.at_end else 2)

    def on_train_end(self, logs: Any = None) -> None:
        self.scale(0.25 if self.at_end else 1)

    def scale(self, factor: float) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(variable * factor)


class Quantizes(keras.callbacks.Callback):
    """Makes other weights of those at the end."""

    def on_train_end(self, logs: Any = None) -> None:
        self.model.quantize("int8")


class AddsLoss(keras.layers.Layer):
    """An endpoint layer: the loss is computed from the inputs of the model."""

    def call(self, inputs: Any) -> Any:
        predicted, y = inputs
        self.add_loss(keras.ops.mean(keras.ops.square(predicted - y)))
        return predicted


def endpoint() -> keras.Model:
    """Compiled without a loss."""
    x, y = keras.Input((COLUMNS,), name="x"), keras.Input((1,), name="y")
    model = keras.Model({"x": x, "y": y}, AddsLoss()([keras.layers.Dense(1)(x), y]))
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def open_endpoint() -> tuple[Any, Any]:
    """Return batches of inputs without targets."""

    def dataset(rows: Rows) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": rows.x, "y": rows.y},)).batch(16)

    return dataset(Rows()), dataset(Rows(37, 1))


class Stops(keras.callbacks.Callback):
    """Ends training in the third step of the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (1, 2):
            self.model.stop_training = True


def weighed_mean() -> keras.Model:
    """Its loss is divided by the sum of the weights."""
    model = without_loss()
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(optimizer=None, loss=loss)
    return model


def masked() -> keras.Model:
    """Its loss counts the tokens that are not 0."""
    tokens = keras.Input((COLUMNS,))
    body = keras.layers.Embedding(9, 4, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(1)(body))
    model.compile(optimizer=None, loss="mse")
    return model


def open_tokens() -> dict[str, list]:
    """Sequences of numbers below 9."""
    rows = [
        (np.arange(n, n + COLUMNS, dtype="float32") % 9, np.zeros((COLUMNS, 1), "float32")) for n in range(64)
    ]
    return {"train": rows}


def open_parts(shared: bool) -> tuple[Any, Any]:
    """Two parts of one data set, which is shuffled before or after it is parted."""
    rows = Rows()
    whole = tf.data.Dataset.from_tensor_slices((rows.x, rows.y))
    whole = whole.shuffle(50) if shared else whole
    train, val = whole.take(64), whole.skip(64)
    return (train if shared else train.shuffle(50)).batch(16), val.batch(16)
