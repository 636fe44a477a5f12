"""`${oc.env:NAME}` in a configuration: the name is written into run folders, never the value, which may be a secret.

Each rank reads the value from its own environment. In `paths`, `data.dir` and `data.cache` it is part of a folder's name, which is not
secret and needed at once to make the run folder.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from train_anywhere.errors import ConfigError

NAMED = re.compile(r"\$\{oc\.env:(\w+)(?:,([^{}]*))?\}")
"""The variable's name, and its default."""

EARLY = ("cluster", "data", "dry_run", "paths", "resume", "trust", "wait")
"""Keys that are used before the schema checks that they are there."""

FOLDERS = ("dir", "cache")
"""Keys of `data` that name folders."""

WRITTEN = ("cluster", "container", "name")
"""Parts of a configuration that are written into the batch script, or name the run folder."""


def plain(config: Any) -> dict[str, Any]:
    """A configuration composed by Hydra (a DictConfig) as dicts and lists; all other interpolations are resolved.

    Raises:
        ConfigError: a variable in a folder's name is not set, or a key was deleted (`~paths`).
    """
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    OmegaConf.register_new_resolver("oc.env", _as_written, replace=True)
    paths = OmegaConf.select(config, "paths")
    if (
        known := OmegaConf.is_dict(paths) and "data_dir" not in paths
    ):  # paths.data in lightning-hydra-template
        OmegaConf.update(config, "paths.data_dir", "${paths.data}", force_add=True)
    try:
        values = {str(key): config[key] for key in config if key != "hydra"}
        tree: dict[str, Any] = {
            k: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v
            for k, v in values.items()
        }
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    if known:
        del tree["paths"]["data_dir"]
    problems = [f"'{key}' is missing; a run needs it." for key in EARLY if key not in tree]
    if problems:
        raise ConfigError(*problems)
    tree["paths"] = _filled(tree["paths"], "paths", problems)
    tree["data"] = {
        k: _filled(v, f"data.{k}", problems) if k in FOLDERS else v for k, v in tree["data"].items()
    }
    if problems:
        raise ConfigError(*problems)
    return tree


def filled(tree: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The configuration with the variables' values; appends a sentence to `problems` for each that can't be filled in."""
    for key in WRITTEN:
        problems += [
            f"{where}={text!r} would be written into the run folder with the variable's value; if that is not a secret, "
            "use $NAME, which your shell fills in; in cluster.setup the job's shell does it: 'export NAME=$NAME'."
            for where, text in _named(tree.get(key), key)
        ]
    return {k: v if k in WRITTEN else _filled(v, k, problems) for k, v in tree.items()}


def _as_written(name: str, *default: str | None) -> str:
    return f"${{oc.env:{','.join([name, *('null' if d is None else d for d in default)])}}}"


def _named(value: Any, where: str) -> list[tuple[str, str]]:
    """Key and text of each string that names a variable."""
    if isinstance(value, Mapping):
        return [found for k, v in value.items() for found in _named(v, f"{where}.{k}")]
    if isinstance(value, list):
        return [found for v in value for found in _named(v, where)]
    return [(where, value)] if isinstance(value, str) and NAMED.search(value) else []


def _filled(value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _filled(v, f"{where}.{k}", problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_filled(v, where, problems) for v in value]
    if not isinstance(value, str):
        return value
    for name, default in NAMED.findall(value):
        if name not in os.environ and not default:
            problems.append(f"{where}={value!r}: the environment variable {name} is not set here; export it.")
    found = NAMED.sub(lambda m: os.environ.get(m[1], m[2] or m[0]), value)
    return None if found == "null" and value != found else found
