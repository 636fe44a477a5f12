"""`resume=RUN`: the run's own frozen configuration, changed by nothing but what the new command line names."""

from collections.abc import Mapping, Sequence
from typing import Any

from src.errors import ConfigError
from src.overrides import compose
from src.rundir import RunDir, open_run

FIXED = (
    "framework",
    "seed",
    "model.",
    "optimizer.name",
    "data.name",
    "data.batch_size",
    "name",
    "paths.results",
)
"""Keys that a checkpoint depends on: with another value it would be another run."""

FREE = ("resume", "dry_run", "from_scratch")
"""Keys that belong to one command, not to the run."""


def saved_overrides(arguments: Sequence[str]) -> list[str]:
    """The overrides that made the run named by `resume=...` among `arguments`; none without that argument.

    Put before the new ones, they select the same groups, and the new ones win.

    Raises:
        ConfigError: where the new ones choose another model, data set or optimizer.
    """
    named = [a.removeprefix("resume=") for a in arguments if a.startswith("resume=")]
    if not named or named[-1] in ("null", ""):
        return []
    run = open_run(named[-1].strip("'\""))
    refuse_other_choices(arguments, run)
    return [line for line in run.overrides.read_text().splitlines() if line]


def refuse_other_choices(arguments: Sequence[str], run: RunDir) -> None:
    """Look at chosen groups before composing: options of the run's model would be taken for keys of another one.

    Raises:
        ConfigError: where a fixed one is not the run's.
    """
    frozen = _frozen(run)
    asked = {k if k in frozen else f"{k}.name": v for k, _, v in (a.partition("=") for a in arguments)}
    refused = {k: v for k, v in asked.items() if k.startswith(FIXED) and str(frozen.get(k, v)) != v}
    if any(k.endswith(".name") for k in refused):
        raise _refusal(refused, frozen)


def resumed(tree: Mapping[str, Any], run: RunDir) -> dict[str, Any]:
    """The run's frozen configuration with the changes that `tree` makes to what its own overrides compose to.

    So a default that was edited since then does not change a run that goes on.

    Raises:
        ConfigError: where a change would make it another run.
    """
    frozen = _frozen(run)
    before, after = flatten(compose(run.overrides.read_text().splitlines())), flatten(tree)
    changed = {k: v for k, v in after.items() if k not in before or before[k] != v}
    gone = [k for k in before if k not in after]
    refused = [k for k in changed if k not in FREE and k.startswith(FIXED) and frozen.get(k) != changed[k]]
    refused += [k for k in changed if k == "strategy.name" and _other_files(frozen[k], changed[k])]
    if refused:
        raise _refusal({k: changed[k] for k in refused}, frozen)
    new = {
        k: v for k, v in after.items() if k not in frozen and k in before
    }  # keys that are younger than the run
    return unflatten(
        {
            **new,
            **{k: v for k, v in frozen.items() if k not in gone},
            **changed,
            **{k: after[k] for k in FREE},
        }
    )


def _frozen(run: RunDir) -> dict[str, Any]:
    import yaml

    return flatten(yaml.safe_load(run.config.read_text()))


def _refusal(refused: Mapping[str, Any], frozen: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        [
            f"{k}={v} can't be changed by resume= (the run has {frozen.get(k)}); start a new run instead."
            for k, v in refused.items()
        ]
    )


def _other_files(before: str, after: str) -> bool:
    """Whether one strategy can't read the checkpoints of the other: those of fsdp are in shards."""
    return before != after and "fsdp" in (before, after)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} as {'a.b': 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': 1} as {'a': {'b': 1}}."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = value
    return tree
