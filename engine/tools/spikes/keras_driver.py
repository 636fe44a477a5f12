"""Train with one call of `keras.Model.fit` per process, also in a process that resumes (Keras 3.15.1, TensorFlow).

`fit` starts again from its first epoch. Until it reaches the saved position, its train and test functions only read batches, and no
callback is called: iterators, shuffles and the hooks of the data are used as in the run that never stopped. The first skipped call
really trains, to create all variables. At the position all variables and callbacks are restored, and `fit` continues.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from wishes import Wishes

from train_anywhere.training.keras.dropin.model import find_optimizers
from train_anywhere.training.keras.dropin.user_callbacks import CallbackStates
from train_anywhere.training.keras.strategies.base import Strategy


class Stopped(Exception):
    """Leaves `fit` without on_train_end."""


@dataclass
class Saved:
    """The state of a run after a call of the train function, or after the end of an epoch.

    Attributes:
        epoch: the epoch of the last trained batch, from 0.
        batch: the number of batches of that epoch that its calls were made for; the last call may have trained fewer.
        closed: whether the hooks of the epoch's end have run.
        logs: what the last step has returned, or the logs of the epoch if it is closed.
    """

    epoch: int
    batch: int
    step: int
    closed: bool
    arrays: list[np.ndarray]
    logs: dict[str, Any]
    stop_training: bool
    callbacks: dict[str, dict[str, str]]


class Recorder:
    """Records every `tf.Variable` that is created in the block, also those that Keras does not track."""

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []
        self.scope = tf.variable_creator_scope(self._create)

    def _create(self, create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        self.variables.append(create(**options))
        return self.variables[-1]


class FitDriver(keras.callbacks.CallbackList):
    """The callbacks of one call of `fit`, which also resume, stop and save the run.

    Args:
        callbacks: the user's callbacks, which see what they see under `fit` alone.
        params: `epochs`, `steps` (batches per epoch, None if unknown) and `verbose`, as `fit` would set them.
        stops: returns whether to stop after a "batch", in a "test" or after an "epoch". Ranks may answer differently.
        saved: the state to resume from.
        rereads: whether batches of earlier epochs are read again; False if a new iterator of the data does not depend on them.
        recorder: has recorded the creation of the model, and is active in `fit`.
        agree_every: steps between collectives of the ranks about stops; the ends of epochs are others.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        params: Mapping[str, Any],
        stops: Callable[["FitDriver", str], bool],
        saved: Saved | None = None,
        rereads: bool = True,
        ranks: Strategy | None = None,
        wishes: Wishes | None = None,
        recorder: Recorder | None = None,
        agree_every: int = 1,
    ) -> None:
        super().__init__(list(callbacks), add_history=True, model=model, **params)
        self.stops, self.saved, self.rereads, self.recorder = stops, saved, rereads, recorder
        self.ranks, self.wishes = ranks or Strategy(), wishes or Wishes({})
        self.states = CallbackStates({f"{n} {type(c).__name__}": c for n, c in enumerate(self.callbacks)})
        self.epoch = self.batch = self.step = self.begin = 0
        self.logs: Any = {}
        self.wants, self.agree_every = [False, False], agree_every
        self.interrupted: Saved | None = None
        self.totals: dict[str, float] = {}
        self.replaying, self.trained, self.tested = saved is not None, False, False
        model.make_train_function()
        model.make_test_function()
        self.functions = model.train_function, model.test_function
        if saved:
            model.train_function, model.test_function = self.skip_train, self.skip_test

    # ---- before the saved position

    def skip_train(self, iterator: Iterator[Any]) -> Any:
        """Read the batches of a call that was trained; train those behind the saved position."""
        train, spe = self.functions[0], self.model.steps_per_execution
        known = self.epoch < self.saved.epoch
        last = self.begin + spe >= (self.params["steps"] or math.inf)
        left = self.saved.batch - self.begin  # more than the epoch has if its last call was short
        count = spe if known else left if last else min(spe, left)
        if not self.trained:  # creates the variables where `fit` alone creates them
            self.trained, count = True, count - 1
            train(itertools.islice(iterator, 1))
        if self.rereads or not known:
            read(iterator, count)
        if known or self.saved.closed or (spe < left and not last):
            return {}
        self.restore()
        rest = list(itertools.islice(iterator, max(0, spe - left)))
        return train(iter(rest)) if rest else self.saved.logs

    def skip_test(self, iterator: Iterator[Any]) -> Any:
        """Read the batches of a call of an earlier validation."""
        count = self.model.steps_per_execution
        if not self.tested:
            self.tested, count = True, count - 1
            self.functions[1](itertools.islice(iterator, 1))
        if self.rereads:
            read(iterator, count)
        else:
            self.model.stop_evaluating = True
        return {}

    def variables(self) -> list[Any]:
        """Return all variables of the model, its metrics and optimizers, and others that the steps use."""
        model = self.model
        kept = [*model.variables, *model.metrics_variables, *(v for m in model.metrics for v in m.variables)]
        kept += [v for optimizer in find_optimizers(model) for v in optimizer.variables]
        kept = list({id(v): v for v in kept}.values())
        known = {v.value.ref() for v in kept}
        return kept + [v for v in (self.recorder.variables if self.recorder else ()) if v.ref() not in known]

    def save(self, closed: bool = False) -> Saved:
        """Return the current state."""
        arrays = [np.array(local.numpy()) for v in self.variables() for local in self.copies(v)]
        logs = {name: np.array(value) for name, value in self.logs.items()}
        stop = bool(self.model.stop_training) or self.wants[1]
        return Saved(self.epoch, self.batch, self.step, closed, arrays, logs, stop, self.states.save())

    def restore(self) -> None:
        """Restore the saved state, from which `fit` continues."""
        copies = [copy for v in self.variables() for copy in self.copies(v)]
        for copy, array in zip(copies, self.saved.arrays, strict=True):
            copy.assign(array)
        self.states.restore(self.saved.callbacks, self.ranks)
        self.model.train_function, self.model.test_function = self.functions
        self.model.stop_training = self.wants[1] = self.saved.stop_training
        self.batch, self.step, self.logs, self.replaying = (
            self.saved.batch,
            self.saved.step,
            self.saved.logs,
            False,
        )

    def copies(self, variable: Any) -> list[tf.Variable]:
        """Return the variable's copies on this process."""
        return self.ranks.local_values(variable) if isinstance(variable, keras.Variable) else [variable]

    # ---- hooks: the user's first, then ours

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start an epoch."""
        self.epoch, self.batch = epoch, 0
        if not self.replaying:
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the number of the call's first batch."""
        self.begin = batch
        self.seen = not self.replaying or (
            self.epoch == self.saved.epoch
            and not self.saved.closed
            and batch + self.model.steps_per_execution > self.saved.batch
        )
        if self.seen:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batches, call observers, and stop if requested."""
        if not self.seen:
            return
        before, length = self.batch, self.params["steps"] or math.inf
        self.batch, self.logs = batch + 1, logs
        self.step += min(self.batch, length) - min(before, length)
        super().on_train_batch_end(batch, logs)
        self.wishes.reach(self.step)
        self.leave_if_stopped("batch", self.batch % self.agree_every == 0 or self.batch >= length)

    def on_test_begin(self, logs: Any = None) -> None:
        """Keep the state before a validation, which runs again if it is interrupted."""
        if not self.replaying:
            self.interrupted = self.save()
            self.totals = self.reduce_metrics()
            super().on_test_begin(logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Hide batches of earlier validations."""
        if not self.replaying:
            super().on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop if requested."""
        if not self.replaying:
            super().on_test_batch_end(batch, logs)
            self.leave_if_stopped("test", (batch + 1) % self.agree_every == 0)

    def on_test_end(self, logs: Any = None) -> None:
        """Give the user's callbacks, and `fit`, the results over all ranks."""
        if not self.replaying:
            self.share(logs, self.reduce_metrics())
            super().on_test_end(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End an epoch, or restore the state after its end."""
        if not self.replaying:
            self.share(logs, self.totals or self.reduce_metrics())
            super().on_epoch_end(epoch, logs)
            self.logs, self.totals = logs, {}
            self.leave_if_stopped("epoch")
        elif self.saved.closed and epoch == self.saved.epoch:
            logs.clear()
            logs.update(self.saved.logs)  # `fit` passes this dict to on_train_end
            self.restore()

    def leave_if_stopped(self, where: str, due: bool = True) -> None:
        """Save the state and leave `fit` if a rank requests it; end training if a rank's callback has set stop_training."""
        self.wants[0] |= self.stops(self, where)
        self.wants[1] |= bool(self.model.stop_training)
        self.model.stop_training = False
        if self.ranks.processes > 1:
            if not due:
                return
            self.wants = [n > 0 for n in self.ranks.sum([float(w) for w in self.wants])]
        self.model.stop_training = self.wants[1]
        if self.wants[0]:
            raise Stopped(self.interrupted if where == "test" else self.save(closed=where == "epoch"))

    # ---- several ranks

    def reduce_metrics(self) -> dict[str, float]:
        """Return the results of the metrics over all ranks, whose states are sums. Empty for a single process."""
        if self.ranks.processes == 1:
            return {}
        metrics = self.model.metrics
        states = [
            [sum(np.array(c.numpy(), np.float64) for c in self.copies(v)) for v in m.variables]
            for m in metrics
        ]
        left, results = (
            iter(self.ranks.sum([n for state in states for array in state for n in array.ravel()])),
            {},
        )
        for metric, state in zip(metrics, states, strict=True):
            sums = [np.array([next(left) for _ in range(array.size)]).reshape(array.shape) for array in state]
            result = metric.stateless_result(
                [tf.constant(a, v.dtype) for a, v in zip(sums, metric.variables, strict=True)]
            )
            results |= result if isinstance(result, dict) else {metric.name: result}
        return {name: float(value) for name, value in results.items()}

    def share(self, logs: dict[str, Any], totals: Mapping[str, float]) -> None:
        """Replace the values of this rank by those of all ranks, in place: `fit` and its callbacks use the same dict."""
        if self.ranks.processes == 1:
            return
        others = sorted(n for n in logs if n not in totals and not n.startswith("val_"))
        means = self.ranks.sum([float(logs[n]) / self.ranks.processes for n in others]) if others else []
        logs.update({n: totals[n] for n in logs if n in totals} | dict(zip(others, means, strict=True)))


def read(iterator: Iterator[Any], count: int) -> None:
    """Read up to `count` batches."""
    for _ in itertools.islice(iterator, count):
        pass
