"""`init=RUN`: a training that begins with the weights of another run, never with its optimizer or its position."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from train_anywhere.checkpoints.choice import choose
from train_anywhere.config.checks.targets import brings_network
from train_anywhere.config.open_groups import TARGET
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.awaited import awaited
from train_anywhere.runs.folder import open_run
from train_anywhere.runs.reopen.frozen import read_frozen

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of weights by name."""

SHOWN = 5
"""Names in one sentence."""


def init_problems(config: Config) -> list[str]:
    """What is wrong with `init`, before anything is submitted: no run, no checkpoint, or another framework's."""
    init = config.init
    if init.run is None or config.resume is not None:
        return []
    try:
        run = open_run(init.run)
        frozen = read_frozen(run)
        framework = frozen["framework"]
        if framework != config.framework:
            return [
                f"init.run={init.run} was trained with framework={framework}, and its weights fit that alone; "
                f"use framework={framework}, or another run."
            ]
        if not awaited(config.after, run):  # else the job looks when it begins
            choose(run, init.checkpoint, checksums=False)
        other = _other_model(config, frozen) if init.strict else None
    except ProjectError as error:
        return [f"init.run={init.run}: {error}"]
    return [other] if other else []


def _other_model(config: Config, frozen: Mapping[str, Any]) -> str | None:
    """A sentence where the run has trained another network or module; sizes of the same one are compared when it is made."""
    whole = brings_network(config)
    key, section = ("task", config.task) if whole else ("model", config.model)
    there = frozen.get(key)
    if not isinstance(there, Mapping):
        return None
    target = there.get(TARGET)
    target = target.get(config.framework) if isinstance(target, Mapping) else target
    here = section.target.get(config.framework)
    known = {name: there.get(name) for name in section.arguments}
    if target == here and (whole or there.get("name") == section.name or known == dict(section.arguments)):
        return None
    if target == here:
        there_it_is, here_it_is = f"{key}={there.get('name')}", f"{key}={section.name}"
    else:
        there_it_is, here_it_is = f"{key}._target_={target}", f"{here}"
    return (
        f"init.run={config.init.run} was trained with {there_it_is}, and its weights are not all those of {here_it_is}; use the "
        f"same {key}, or init.strict=false to take what fits."
    )


def fitting(own: Shapes, stored: Shapes, config: Config, tell: Callable[[str], None]) -> list[str]:
    """The names of the weights to take; a line says which, and how many.

    Args:
        own: of the model that is to be trained.
        stored: of the other run.

    Raises:
        CheckpointError: they differ, and `init.strict` is on.
    """
    taken = [name for name, shape in own.items() if stored.get(name) == shape]
    left = [f"{n} {_shape(s)}" for n, s in own.items() if n not in taken]
    unused = [f"{n} {_shape(s)}" for n, s in stored.items() if own.get(n) != s]
    if (left or unused) and config.init.strict:
        raise CheckpointError(
            f"init.run={config.init.run} has other weights than this model: "
            f"here {_listed(left)}, there {_listed(unused)}; use the same task and model, or init.strict=false to take what fits."
        )
    if not taken:
        raise CheckpointError(
            f"init.run={config.init.run} has no weight that fits this model by name and shape: "
            f"here {_listed(left)}, there {_listed(unused)}; leave init out."
        )
    tell(f"init: {len(taken)} of {len(own)} weights are those of {config.init.run}.")
    if left or unused:
        tell(f"init: not taken, here {_listed(left)}; there {_listed(unused)}.")
    return taken


def _shape(shape: Sequence[int]) -> str:
    return f"{list(shape)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return printable(", ".join(names[:SHOWN])) + more if names else "nothing else"
