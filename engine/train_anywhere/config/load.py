"""Between the tree that Hydra composes and the typed configuration, both ways; every problem of it is found at once."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from train_anywhere import note_backend
from train_anywhere.config.checks.contradictions import Check, cross_checks
from train_anywhere.config.checks.monitors import with_monitors
from train_anywhere.config.checks.targets import checked
from train_anywhere.config.environment_values import filled
from train_anywhere.config.flat import flatten, unflatten
from train_anywhere.config.open_groups import DERIVED, Open
from train_anywhere.config.paths import unexpanded
from train_anywhere.config.schema import Config
from train_anywhere.config.strict import build
from train_anywhere.errors import ConfigError

FOLDERS = ("paths.results", "paths.data", "data.dir", "data.cache", "init.run")
"""Folders of the machine where the command is typed."""


def load(tree: Mapping[str, Any], *checks: Check) -> Config:
    """The typed configuration.

    Args:
        tree: the composed configuration as plain dicts and lists (`train_anywhere.config.environment_values.plain`).
        checks: further checks of where it is to run, so that their problems come in the same list.

    Raises:
        ConfigError: with all problems, each with what to type instead.
    """
    problems: list[str] = []
    config = build(Config, filled(tree, problems), problems)
    if config is not None:
        config = with_monitors(checked(config, problems), problems)
        # keys already reported: the checks see allowed values in their place, and must not report those
        named = {p.partition("=")[0] for p in problems}
        found = [*cross_checks(config), *(p for check in checks for p in check(config))]
        problems += [p for p in found if p.partition("=")[0] not in named]
    if config is None or problems:
        raise ConfigError(*problems)
    if config.framework == "keras":
        note_backend()
    return replace(config, written=_written(tree, config))


def as_tree(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts and lists, which `load` turns into it again."""
    flat = flatten(_plain(config))
    folders = {key: unexpanded(flat[key]) for key in FOLDERS if isinstance(flat.get(key), str)}
    return unflatten(flat | dict(config.written) | folders)


def _written(tree: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return strings, lists and mappings that the schema has turned into something else; folders of this machine are kept absolute."""
    values = flatten(_plain(config))
    return {
        key: written
        for key, written in flatten(tree).items()
        if isinstance(written, str | list | Mapping) and written != values.get(key) and key not in FOLDERS
    }


def _plain(config: Config) -> dict[str, Any]:
    return {f.name: _as_written(getattr(config, f.name)) for f in fields(config) if f.metadata != DERIVED}


def _as_written(value: Any) -> Any:
    """A typed value as plain dicts and lists, a section of an open group with its `_target_`."""
    if isinstance(value, Mapping):
        return {k: _as_written(v) for k, v in value.items()}
    if not is_dataclass(value):
        return value
    own = {f.name: _as_written(getattr(value, f.name)) for f in fields(value) if not f.metadata}
    return value.tree(own) if isinstance(value, Open) else own
