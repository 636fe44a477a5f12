"""The metrics as Keras callbacks get them: by their Keras names, and read from the device only if a callback uses them."""

from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from train_anywhere.config.checks.monitors import from_keras_name
from train_anywhere.training.keras.module import Module


class BatchLogs(UserDict[str, float]):
    """The metrics up to a batch, read from the device only if a callback uses them; see `Module.report_batch`."""

    def __init__(self, module: Module, split: str, metrics: Mapping[str, float] | None = None) -> None:
        self._module, self._split, self._metrics = module, split, metrics

    @cached_property
    def data(self) -> dict[str, float]:  # type: ignore[override]
        """The metrics by their Keras names."""
        return to_keras_names(self._module.report_batch(self._split, self._metrics), self._split)


def to_keras_names(metrics: Mapping[str, float], split: str = "") -> dict[str, Any]:
    """Rename metrics as Keras callbacks expect: train/loss becomes loss, val/loss val_loss; within one `split`, both become loss."""
    named = {}
    for name, value in metrics.items():
        prefix, _, rest = name.partition("/")
        if rest:
            named[f"val_{rest}" if prefix == "val" and not split else rest] = value
    return named


def from_keras_names(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in the logs of an epoch, under the names of metrics: val_loss becomes val/loss, norm train/norm."""
    numbers = {}
    for name, value in logs.items():
        with suppress(TypeError, ValueError):  # a callback may keep anything in the logs
            numbers[from_keras_name(name)] = float(value)
    return numbers
