"""Start what a command line asks for, here or as jobs: one run, the members of a sweep, or a search."""

import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString
from omegaconf import DictConfig, OmegaConf

from train_anywhere.config.command.compose import compose_config, config_loader, empty_sweep_problem
from train_anywhere.config.load import to_plain_tree
from train_anywhere.errors import ConfigError
from train_anywhere.launch.command import Checks
from train_anywhere.slurm.presets import resolve_current
from train_anywhere.slurm.status.find_runs import read_entry

PLAIN = (bool, int, float, str, list, QuotedString, type(None))
"""Types of values that replace another value, while a mapping is merged with it."""

Tree = dict[str, Any]


def start_runs(
    words: Sequence[str],
    sweep: bool,
    checks: Checks,
    fixed: Sequence[str] = (),
    complete: Callable[[Tree], Tree] = lambda tree: tree,
) -> int:
    """Run or submit what the overrides name, and return the exit code.

    `sweep` is whether `-m` is typed, which a submission does not need. Each run has the overrides `fixed` too, and `complete` adds what no
    override can set. Raises ProjectError: a refusal; nothing was written.
    """
    words = resolve_current(words) if "cluster=current" in words else [*words]
    parser = OverridesParser.create(config_loader())
    overrides = parser.parse_overrides(words)
    hidden = [*(str(o.input_line) for o in overrides if o.is_hydra_override()), *fixed]
    typed = [o for o in overrides if not o.is_hydra_override()]
    several = any(o.is_sweep_override() for o in typed)
    config = compose_config([*hidden, *(str(o.input_line) for o in typed if not o.is_sweep_override())])
    submits = config.hydra.launcher._target_ == "slurm"
    sweep = sweep or (submits and several)
    if several and not sweep:
        compose_config(words)  # Hydra refuses the sweep
    if sweep and config.hydra.sweeper._target_ == "optuna":
        _search(config, hidden, typed, lambda tree: complete(to_plain_tree(tree)), checks, submits)
        return 0
    members = list_members(typed) if several else [[str(o.input_line) for o in typed]]
    configs = compose_members(hidden, members, config) if several else [config]
    trees = [complete(to_plain_tree(one)) for one in configs]
    if submits:
        from train_anywhere.slurm.submission.prepare import start  # a run here does not need it

        results = start(trees, members, checks.problems, checks.refuse_unreadable)
        if failed := next(filter(None, results), None):
            raise failed
        return 0
    from train_anywhere.launch import local_run  # a submission does not need it

    if not sweep:
        return local_run.start(trees[0], members[0], checks)
    ended = local_run.run_all(trees, members, checks)
    code = next((e.code for e in ended if e.code), 0)
    try:
        if len(ended) > 1:
            from train_anywhere.slurm.status.sweep_page import sweep_lines

            print(sweep_lines([read_entry(e.run.path) for e in ended]), flush=True)
    finally:  # also if nobody reads the table
        if code:
            sys.exit(code)
    return 0


def _search(
    config: DictConfig,
    hidden: Sequence[str],
    typed: Sequence[Override],
    convert: Callable[[DictConfig], Tree],
    checks: Checks,
    submits: bool,
) -> None:
    """Carry out the search of `hydra/sweeper=optuna`. Raises ConfigError without Optuna."""
    options: Any = OmegaConf.to_container(config.hydra.sweeper)
    del options["_target_"]
    if not isinstance(params := options.pop("params") or {}, Mapping):
        raise ConfigError(
            f"hydra.sweeper.params={params} is not a search space; use hydra.sweeper.params={{seed:'range(1,9)'}}, or give keys "
            "several values."
        )
    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install optuna.")
    from train_anywhere.search.loop import search  # a sweep does not need it

    added = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in params.items()])
    search(
        [*added, *typed],
        options,
        lambda words: convert(compose_config([*hidden, *words])),
        checks,
        submits,
    )


def list_members(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each member. Raises ConfigError if a sweep is empty."""
    sweeps = [o for o in overrides if o.is_sweep_override() and o.is_discrete_sweep()]
    if empty := [o for o in sweeps if not list(o.sweep_string_iterator())]:
        raise ConfigError(*(empty_sweep_problem(str(o.input_line)) for o in empty))
    # the last value of a repeated key counts
    by_key = {
        (key := o.get_key_element()): [f"{key}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [f"{key}={o.get_value_element_as_str()}"]
        for o in overrides
    }
    return [list(member) for member in itertools.product(*by_key.values())]


def compose_members(
    hidden: Sequence[str], members: Sequence[Sequence[str]], config: DictConfig
) -> list[DictConfig]:
    """Return the configuration of each member, which differ in plain values only if one composition is enough.

    Hydra needs 80 ms of CPU for a composition, and sets values like `seed=2` only after it. All members have the overrides `hidden` too,
    and the `${now:...}` of `config`.
    """
    configs, first, base = list[DictConfig](), [""], config
    for member in map(list, members):
        changed = changed_values(first, member, set(base.hydra.runtime.choices))
        if changed is None:
            first, base, changed = member, compose_config([*hidden, *member]), []
            OmegaConf.copy_cache(from_config=config, to_config=base)
        configs.append(deepcopy(base))
        ConfigLoaderImpl._apply_overrides_to_config(changed, configs[-1])
    return configs


def changed_values(first: list[str], member: list[str], groups: Collection[Any]) -> list[Override] | None:
    """Return the overrides that differ from those of the first member. None if the member needs a composition of its own."""
    if len(member) != len(first) or "" in first:
        return None
    before, after = (OverridesParser.create().parse_overrides(words) for words in (first, member))
    changed = [new for old, new in zip(before, after, strict=True) if old.input_line != new.input_line]
    same = all(old.key_or_group == new.key_or_group for old, new in zip(before, after, strict=True))
    values = {o.key_or_group: isinstance(o.value(), PLAIN) and o.type == OverrideType.CHANGE for o in changed}
    keys = [f"{o.key_or_group}." for o in after if o.key_or_group not in groups]
    nested = any(a.startswith(b) for n, a in enumerate(keys) for m, b in enumerate(keys) if n != m)
    own = not same or nested or not all(values.values()) or any(k in groups for k in values)
    return None if own else changed
