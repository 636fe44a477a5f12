"""What user code sees of the Trainer's callbacks and of the run's checkpoints."""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

INTERNAL = ("train_anywhere", "lightning", "lightning_fabric")
"""Packages whose code sees all callbacks."""


class Callbacks(list[pl.Callback]):
    """The callbacks of a Trainer. User code sees its own and `RunCheckpoints`.

    User code that changes the list changes only what it sees.
    """

    def __iter__(self) -> Iterator[pl.Callback]:
        return iter(self._seen_by(caller()))

    def __len__(self) -> int:
        return len(self._seen_by(caller()))

    def __radd__(self, others: list[Any]) -> list[Any]:
        return [*others, *self._seen_by(caller())]

    def __iadd__(self, others: Any) -> "Callbacks":  # type: ignore[misc]
        self._replace([*self._seen_by(caller()), *others], caller())
        return self

    def replaced(self, chosen: Iterable[pl.Callback], frame: FrameType) -> "Callbacks":
        """Return the list after the code in a frame has assigned `trainer.callbacks`."""
        if chosen is self:
            return self
        changed = Callbacks(list.__getitem__(self, slice(None)))
        changed._replace(list(chosen), frame)
        return changed

    def _seen_by(self, frame: FrameType) -> list[pl.Callback]:
        everything = list.__getitem__(self, slice(None))
        return everything if _is_internal(frame) else [c for c in everything if is_visible(c)]

    def _replace(self, chosen: list[pl.Callback], frame: FrameType) -> None:
        if not _is_internal(frame):
            hidden = [(n, c) for n, c in enumerate(list.__getitem__(self, slice(None))) if not is_visible(c)]
            first = [c for place, (n, c) in enumerate(hidden) if n == place]
            chosen = [*first, *filter(is_visible, chosen), *(c for _, c in hidden[len(first) :])]
        else:
            chosen = self._with_savers_last(chosen)
        list.__setitem__(self, slice(None), chosen)

    def _with_savers_last(self, chosen: list[pl.Callback]) -> list[pl.Callback]:
        """Return the callbacks with those of a module before the ones that save: they must see the results of all others."""
        before = list.__getitem__(self, slice(None))
        place = next((n for n, c in enumerate(before) if isinstance(c, RunCheckpoints)), len(before))
        savers = [callback for callback in before[place:] if callback in chosen]
        return [*(callback for callback in chosen if callback not in savers), *savers]


def _on_seen(name: str) -> Callable[..., Any]:
    def method(self: Callbacks, *arguments: Any, **named: Any) -> Any:
        frame = caller()
        seen = self._seen_by(frame)
        before = [*seen]
        values = [one._seen_by(frame) if isinstance(one, Callbacks) else one for one in arguments]
        result = getattr(seen, name)(*values, **named)
        if not (len(seen) == len(before) and all(map(operator.is_, seen, before))):
            self._replace(seen, frame)
        return result

    return method


for _method in ("__add__", "__contains__", "__delitem__", "__eq__", "__getitem__", "__ne__", "__repr__", "__reversed__", "__setitem__",
                "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"):  # fmt: skip
    setattr(Callbacks, _method, _on_seen(_method))


def caller() -> FrameType:
    """Return the frame that has called the function that calls this one."""
    frame = inspect.currentframe()
    assert frame and frame.f_back and frame.f_back.f_back
    return frame.f_back.f_back


def _is_internal(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] in INTERNAL


def is_visible(callback: pl.Callback) -> bool:
    """Return whether user code sees a callback: its own, Lightning's, or the checkpoints'."""
    return isinstance(callback, RunCheckpoints) or not type(callback).__module__.startswith("train_anywhere.")


class RunCheckpoints(ModelCheckpoint):
    """Lightning's ModelCheckpoint as user code reads it, about this project's checkpoints.

    Args:
        monitor: the metric that decides which checkpoint is the best.
        mode: whether the smallest or the largest value is the best.
    """

    def __init__(
        self, folder: Path, monitor: str | None, mode: str, finish: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(dirpath=folder, monitor=monitor, mode=mode, every_n_epochs=1)
        self.finish, self._complete = finish, False
        self._watching: list[Callable[[pl.Trainer], None]] = []

    def when_epoch_ends(self, call: Callable[[pl.Trainer], None]) -> None:
        """Call a function after the hooks of an epoch that can log a metric, as Lightning's EarlyStopping is called."""
        self._watching.append(call)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call the functions of `when_epoch_ends`."""
        for call in self._watching:
            call(trainer)

    @property
    def best_model_path(self) -> str:
        """The file of the best or newest checkpoint. It exists when the training is complete."""
        if self._complete:
            self.finish()
        return self._best

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        self._best = path

    def end_epoch(self, complete: bool) -> None:
        """Note whether the last checkpoint of the training is submitted."""
        self._complete = complete

    def follow(self, path: Path, value: float | None) -> None:
        """Take a checkpoint into account, with the value of the monitored metric."""
        self.last_model_path = self._last_checkpoint_saved = str(path)
        if self.monitor is None:
            self.best_model_path = str(path)
        elif value is not None:
            self.current_score = torch.tensor(value)
            best: Any = self.best_model_score  # type: ignore[has-type]
            sign = 1 if self.mode == "max" else -1
            if best is None or sign * value >= sign * float(best):
                self.best_model_score = self.kth_value = self.current_score
                self.best_model_path = self.kth_best_model_path = str(path)
                self.best_k_models = {str(path): self.current_score}


_OWN = ("setup", "state_dict", "load_state_dict")
for _hook in (*_OWN, *(name for name in dir(pl.Callback) if name.startswith("on_"))):
    if _hook not in vars(RunCheckpoints):
        setattr(RunCheckpoints, _hook, getattr(pl.Callback, _hook))  # it saves nothing itself
