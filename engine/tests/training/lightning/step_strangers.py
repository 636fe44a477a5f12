"""A callback with every hook of a step, for the tests of the loop."""

from typing import Any

import lightning.pytorch as pl

CALLED: list[str] = []
"""Hooks that `Listening` was called with, in order."""

OF_A_STEP = ("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
             "on_before_optimizer_step", "on_train_batch_end")  # fmt: skip


def telling(name: str) -> Any:
    """Return a hook that records its call, its arguments and Lightning's current hook."""

    def hook(self: Any, *arguments: Any, **named: Any) -> Any:
        module = arguments[1]
        CALLED.append(
            f"{type(self).__name__}.{name}({len(arguments)}, {sorted(named)}) in {module._current_fx_name}"
        )
        base = super(type(self), self)
        return getattr(base, name)(*arguments, **named)

    return hook


class Listening(pl.Callback):
    """Has every hook of a step."""


for _name in OF_A_STEP:
    setattr(Listening, _name, telling(_name))
