"""`resume=RUN`: the run's own frozen configuration, changed by nothing but what the new command line names."""

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from train_anywhere.config.checks.strategy_table import SHARDED
from train_anywhere.config.command.compose import compose, groups, quoted
from train_anywhere.config.flat import flatten, same, unflatten
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.reopen.frozen import FREE, ONE_COMMAND, read_frozen, read_overrides, refuse_damaged
from train_anywhere.runs.reopen.trust import foreign_lines, refuse_foreign

FIXED = (
    "framework",
    "seed",
    "task.",
    "model.",
    "optimizer.name",
    "optimizer._target_",
    "data.name",
    "data._target_",
    "data.batch_size",
    "name",
    "init.",
    "paths.results",
)
"""Keys that a checkpoint depends on: with another value it would be another run."""


def saved_overrides(arguments: Sequence[str]) -> list[str]:
    """The overrides that made the run named by `resume=...` among `arguments`; none without that argument.

    Put before the new ones, they select the same groups, and the new ones win.

    Raises:
        ConfigError: where the new ones choose another model, data set or optimizer.
        CheckpointError: where it is no run folder, or a damaged one.
    """
    named = [a.lstrip("+").removeprefix("resume=") for a in arguments if a.lstrip("+").startswith("resume=")]
    if not named or named[-1] in ("null", ""):
        return []
    run = open_run(named[-1].strip("'\""))
    refuse_damaged(run)
    refuse_other_choices(arguments, run)
    saved = saved_lines(run)
    for line in [a for a in read_overrides(run) if ONE_COMMAND.match(a)]:
        print(f"{run.overrides}: {line!r} belongs to one command and is not used again.", file=sys.stderr)
    problems = [
        f"'{a}' asks for several runs, but resume= continues one; give one value."
        for a in map(quoted, arguments)
        if not a.startswith("-") and _parsed(a, "this command").is_sweep_override()
    ]
    if problems:
        raise ConfigError(*problems)
    if not any(a.lstrip("+").lower() == "trust=true" for a in arguments):
        _refuse_foreign_lines(run, saved, arguments)
    return saved


def _refuse_foreign_lines(run: RunDir, saved: Sequence[str], typed: Sequence[str]) -> None:
    """Look at the overrides before they are composed: that reads the environment. Raises ConfigError, see `refuse_foreign`."""
    if lines := foreign_lines(run.path, [line for line in saved if line not in typed]):
        refuse_foreign(run.path, _frozen(run), flatten(compose(chosen_lines(saved))), lines=lines)


def chosen_lines(saved: Sequence[str]) -> list[str]:
    """The overrides of a run folder that choose among this project's own files, and the run's name if that is a plain word."""
    plain = re.compile(r"name=[\w.=+-]+", re.ASCII)
    return [s for s in saved if plain.fullmatch(s) or s.lstrip("+~").partition("=")[0] in groups()]


def saved_lines(run: RunDir) -> list[str]:
    """The overrides in the run folder that belong to the run rather than to one command.

    Raises:
        CheckpointError: where overrides.txt can't be read.
        ConfigError: a line that a run folder can't have: `cluster=../../x` would compose a file from anywhere.
    """
    lines = [quoted(line) for line in read_overrides(run) if not ONE_COMMAND.match(line)]
    choices = groups()
    problems = []
    for line in lines:
        override = _parsed(line, str(run.overrides))
        key, value = override.key_or_group, None if override.is_sweep_override() else override.value()
        chosen = value if isinstance(value, list) else [value]  # loggers=[wandb,mlflow]
        known = key not in choices or all(v is None or str(v) in choices[key] for v in chosen)
        if override.is_sweep_override() or override.package or not known:
            problems.append(f"{run.overrides}: {line!r} is not a choice of this project, so it is not used.")
    if problems:
        raise ConfigError(*problems)
    return lines


def _parsed(line: str, where: str) -> Any:
    """The override of one line. Raises ConfigError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(line)
    except HydraException as error:
        raise ConfigError(f"{where}: {line!r} is not of the form key=value.") from error


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


def resumed(tree: Mapping[str, Any], run: RunDir, overrides: Sequence[str]) -> dict[str, Any]:
    """The run's frozen configuration with the changes that `tree` makes to what its own overrides compose to.

    A default that was edited since then does not change a resumed run.

    Args:
        overrides: what `tree` was composed of: the run's own overrides, then those of this command.

    Raises:
        ConfigError: a change would make it another run, or the run folder brings what reaches out of it, see `trust.py`.
    """
    frozen, saved = _frozen(run), saved_lines(run)
    if not tree["trust"]:
        _refuse_foreign_lines(run, saved, overrides[len(saved) :])
    before, after = flatten(compose(saved)), flatten(tree)
    changed = {k: v for k, v in after.items() if k not in before or before[k] != v}
    gone = [k for k in before if k not in after]
    refused = [
        k for k in changed if k not in FREE and k.startswith(FIXED) and not same(frozen.get(k), changed[k])
    ]
    refused += [k for k in changed if k == "strategy.name" and _other_files(frozen.get(k), changed[k])]
    if refused:
        raise _refusal({k: changed[k] for k in refused}, frozen)
    sections = {name for k in frozen for name in accumulate(k.split("."), "{}.{}".format)}
    younger = {k: v for k, v in after.items() if k not in sections and k in before}  # than the run
    continued = younger | {k: v for k, v in frozen.items() if k not in gone and k not in FREE}
    continued |= changed | {k: after[k] for k in FREE}
    if not tree["trust"]:
        refuse_foreign(run.path, continued, _without(saved, overrides))
    return unflatten(continued)


def _without(saved: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """What this project composes with this command's own words, and of the run folder's only those that name a file here."""
    typed = overrides[len(saved) :] if list(overrides[: len(saved)]) == list(saved) else []
    words = [w for w in typed if not w.startswith("-")]
    return flatten(compose([*chosen_lines(saved), *words]))


def _frozen(run: RunDir) -> dict[str, Any]:
    return flatten(read_frozen(run))


def _refusal(refused: Mapping[str, Any], frozen: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        *[
            f"{k}={v} can't be changed by resume= (the run has {frozen.get(k)}); start a new run instead."
            for k, v in refused.items()
        ]
    )


def _other_files(before: str | None, after: str) -> bool:
    """Whether one strategy can't read the checkpoints of the other: those of some are in shards."""
    return before != after and bool(SHARDED & {before, after})
