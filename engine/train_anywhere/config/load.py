"""Convert the tree that Hydra composes into the typed configuration, and back.

A run folder holds `${oc.env:NAME}`, never the value, which may be a secret. Each rank reads the value from its own environment. `paths`,
`data.dir` and `data.cache` are exceptions: their values are read when the command starts, because they name folders, which are not secret
and needed before the ranks start.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from typing import Any

from train_anywhere import use_tensorflow
from train_anywhere.config.checks.contradictions import Check, find_contradictions
from train_anywhere.config.checks.monitors import fill_monitors
from train_anywhere.config.checks.targets import check_targets
from train_anywhere.config.keys import (
    ARGS,
    CHECK,
    PASSED,
    SINGLE_GROUPS,
    TARGET,
    OpenSection,
    flatten,
    key_fields,
    unflatten,
)
from train_anywhere.config.other_names import with_keys_meant
from train_anywhere.config.paths import escape_dollars
from train_anywhere.config.schema import Config
from train_anywhere.config.signatures import Definition, TargetError, read
from train_anywhere.config.strict import build, field_types, section_class, section_keys
from train_anywhere.errors import ConfigError

FOLDERS = ("paths.results", "paths.data", "data.dir", "data.cache", "init.run", "cluster.cache")
"""Keys with folders on the machine where the command is typed."""

VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,([^{}]*))?\}")
"""A reference to a variable: its name and its default."""

UNSET = re.compile(r"\$\{(unset|own_default):")
"""A value that stands for the default of a key."""

SAVED = ("cluster", "container", "name")
"""Keys whose values are written into the batch script (two sections) or name the run folder; they can't refer to a variable."""


def load(tree: Mapping[str, Any], *checks: Check) -> Config:
    """Return the typed configuration.

    Args:
        tree: the composed configuration as plain dicts and lists, from `train_anywhere.config.load.to_plain_tree`.
        checks: further checks, for the machine or site of the run, whose problems are added to the list.

    Raises ConfigError: lists all problems, each with what to type instead.
    """
    problems: list[str] = []
    config = build(Config, fill_variables(tree, problems), problems)
    if config is not None:
        config = fill_monitors(check_targets(config, problems), problems)
        # the checks see allowed values for keys that are already reported, and must not report these keys again
        named = {p.partition("=")[0] for p in problems}
        found = [*find_contradictions(config), *(p for check in checks for p in check(config))]
        problems += [p for p in found if p.partition("=")[0] not in named]
    if config is None or problems:
        raise ConfigError(*(_with_argument(with_keys_meant(problem, tree), tree) for problem in problems))
    if config.framework == "keras" and not config.program:
        use_tensorflow()
    values = flatten(_to_plain(config))
    changed = {
        key: written  # without folders, which stay absolute
        for key, written in flatten(tree).items()
        if isinstance(written, str | list | Mapping) and written != values.get(key) and key not in FOLDERS
    }
    return replace(config, written=changed)


def to_tree(config: Config) -> dict[str, Any]:
    """Return the configuration as plain dicts and lists, which `load` accepts."""
    flat = flatten(_to_plain(config))
    folders = {key: escape_dollars(flat[key]) for key in FOLDERS if isinstance(flat.get(key), str)}
    return unflatten(flat | dict(config.written) | folders)


def _to_plain(value: Any) -> Any:
    """Return a typed value as plain dicts and lists, an open section with its `_target_`."""
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if not is_dataclass(value):
        return value
    own = {f.name: _to_plain(getattr(value, f.name)) for f in key_fields(value)}
    if not isinstance(value, OpenSection):
        return own
    targets = {*value.target.values()}
    target = targets.pop() if len(targets) == 1 and len(value.target) > 1 else dict(value.target)
    return {**own, TARGET: target, **({CHECK: value.check} if value.check else {}), **value.arguments}


def to_plain_tree(config: Any) -> dict[str, Any]:
    """Convert the DictConfig that Hydra composed to dicts and lists.

    All interpolations are resolved, except `${oc.env:NAME}` outside of folder names.

    Raises ConfigError: a variable in a folder name is not set, or a required key was deleted (`~paths`).
    """
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    OmegaConf.register_new_resolver("oc.env", _keep_reference, replace=True)
    paths = OmegaConf.select(config, "paths")
    # configurations from lightning-hydra-template refer to paths.data as paths.data_dir
    if added := OmegaConf.is_dict(paths) and "data_dir" not in paths:
        OmegaConf.update(config, "paths.data_dir", "${paths.data}", force_add=True)
    try:
        # `${lr}` in a note is text
        text: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, ["note"]))
        values = {str(key): config[key] for key in config if key not in ("hydra", "note")} | text
        tree: dict[str, Any] = {
            k: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v
            for k, v in values.items()
        }
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    if added:
        del tree["paths"]["data_dir"]
    for group in SINGLE_GROUPS:
        if isinstance(tree.get(group), dict) and (passed := _passed(tree, group, config[group])):
            tree[group][PASSED] = passed
    # keys that are read before the schema checks that they exist
    needed = ("cluster", "data", "dry_run", "paths", "resume", "trust", "wait")
    problems = [f"'{key}' is missing; a run needs it." for key in needed if key not in tree]
    if problems:
        raise ConfigError(*problems)
    tree["paths"] = _fill(tree["paths"], "paths", problems)
    tree["data"] = {
        k: _fill(v, f"data.{k}", problems) if k in ("dir", "cache") else v for k, v in tree["data"].items()
    }
    if problems:
        raise ConfigError(*problems)
    return tree


def _passed(tree: Mapping[str, Any], group: str, config: Any) -> dict[str, Any]:
    """Return the keys of a section that have a value of a file or the command line, and are arguments of its target."""
    from omegaconf import OmegaConf

    cls, target = section_class(field_types(Config)[group], tree[group]), read_target(tree, group)
    if not target or not issubclass(cls, OpenSection):
        return {}
    written: Any = OmegaConf.to_container(config, resolve=False)
    given = [
        key for key, value in written.items() if not (value in (None, {}, []) or UNSET.match(str(value)))
    ]
    return {key: tree[group][key] for key in given if key in section_keys(cls) & target.parameters.keys()}


def read_target(tree: Mapping[str, Any], group: str) -> Definition | None:
    """Return the target of a section according to its source, or None if there is none; its check reports why."""
    target = tree[group].get(TARGET)
    with suppress(TargetError, OSError, KeyError, TypeError, ValueError):
        return read(target if isinstance(target, str) else target[tree["framework"]])
    return None


def _with_argument(problem: str, tree: Mapping[str, Any]) -> str:
    """Add to the problem of a key that the target of its section has an argument of this name."""
    found = re.match(r"(\w+)\.(\w+)=", problem)
    section = tree.get(found[1]) if found else None
    if not found or not isinstance(section, Mapping) or found[2] not in section.get(PASSED, {}):
        return problem
    return (
        f"{problem} It is a key of this project, and {section[TARGET]} has an argument of this name: rename that, or pass it by "
        f"its place in {found[1]}.{ARGS}=[...]."
    )


def fill_variables(tree: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the configuration with the values of the variables."""
    # the strings of a program are someone else's, which gets them as they are, and a note is text
    return {k: v if k in ("program", "note") else _fill(v, str(k), problems) for k, v in tree.items()}


def _keep_reference(name: str, *default: str | None) -> str:
    """Resolve `${oc.env:NAME,default}` to itself."""
    return f"${{oc.env:{','.join([name, *('null' if d is None else d for d in default)])}}}"


def _fill(value: Any, key: str, problems: list[str]) -> Any:
    """Return `value` with the variables replaced by their values or defaults."""
    if isinstance(value, Mapping):
        return {k: _fill(v, f"{key}.{k}", problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, key, problems) for v in value]
    if not isinstance(value, str):
        return value
    if key.partition(".")[0] in SAVED and VARIABLE.search(value):
        problems.append(
            f"{key}={value!r} would be written into the run folder with the variable's value; if it is not a secret, "
            "type $NAME instead, so that your shell inserts it; in cluster.setup, the job's shell inserts it: 'export NAME=$NAME'."
        )
        return value
    for name, default in VARIABLE.findall(value):
        if name not in os.environ and not default:
            problems.append(f"{key}={value!r}: the environment variable {name} is not set here; export it.")
    filled = VARIABLE.sub(lambda m: os.environ.get(m[1], m[2] or m[0]), value)
    return None if filled == "null" and value != filled else filled
