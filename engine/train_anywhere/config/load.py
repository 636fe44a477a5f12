"""Convert the tree that Hydra composes into the typed configuration, with all problems at once, and back."""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from train_anywhere import use_tensorflow
from train_anywhere.config.checks.contradictions import Check, find_contradictions
from train_anywhere.config.checks.monitors import fill_monitors
from train_anywhere.config.checks.targets import check_targets
from train_anywhere.config.environment_values import fill_variables
from train_anywhere.config.flat import flatten, unflatten
from train_anywhere.config.open_groups import OpenSection, key_fields
from train_anywhere.config.other_names import with_keys_meant
from train_anywhere.config.paths import escape_dollars
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import build
from train_anywhere.errors import ConfigError

FOLDERS = ("paths.results", "paths.data", "data.dir", "data.cache", "init.run", "cluster.cache")
"""Keys with folders on the machine where the command is typed."""


def load(tree: Mapping[str, Any], *checks: Check) -> Config:
    """Return the typed configuration.

    Args:
        tree: the composed configuration as plain dicts and lists, from `train_anywhere.config.environment_values.to_plain_tree`.
        checks: further checks, for the machine or site of the run, whose problems are added to the list.

    Raises:
        ConfigError: lists all problems, each with what to type instead.
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
        raise ConfigError(*(with_keys_meant(problem, tree) for problem in problems))
    if config.framework == "keras" and not config.program:
        use_tensorflow()
    return replace(config, written=_written_values(tree, _to_plain(config)))


def to_tree(config: Config) -> dict[str, Any]:
    """Return the configuration as plain dicts and lists, which `load` accepts."""
    flat = flatten(_to_plain(config))
    folders = {key: escape_dollars(flat[key]) for key in FOLDERS if isinstance(flat.get(key), str)}
    return unflatten(flat | dict(config.written) | folders)


def _written_values(tree: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the strings, lists and mappings that `load` has changed, without folders of this machine, which stay absolute."""
    values = flatten(plain)
    return {
        key: written
        for key, written in flatten(tree).items()
        if isinstance(written, str | list | Mapping) and written != values.get(key) and key not in FOLDERS
    }


def _to_plain(value: Any) -> Any:
    """Return a typed value as plain dicts and lists; a section of an open group has its `_target_`."""
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if not is_dataclass(value):
        return value
    own = {f.name: _to_plain(getattr(value, f.name)) for f in key_fields(value)}
    return value.tree(own) if isinstance(value, OpenSection) else own
