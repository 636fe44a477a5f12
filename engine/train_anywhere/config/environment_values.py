"""Values of `${oc.env:NAME}`. A run folder holds the name of the variable, never its value, which may be a secret.

Each rank reads the value from its environment. In `paths`, `data.dir` and `data.cache` the value is read at once: it is part of a folder's
name, which is not secret and needed to create the run folder.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from train_anywhere.errors import ConfigError

VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,([^{}]*))?\}")
"""A reference to a variable: its name and its default."""

REQUIRED = ("cluster", "data", "dry_run", "paths", "resume", "trust", "wait")
"""Keys that are read before the schema checks that they exist."""

FOLDERS = ("dir", "cache")
"""Keys of `data` that name folders."""

SAVED = ("cluster", "container", "name")
"""Sections that are written into the batch script, and the name of the run folder."""


def to_plain_tree(config: Any) -> dict[str, Any]:
    """Return a DictConfig that Hydra composed as dicts and lists, with all other interpolations resolved.

    Raises:
        ConfigError: a variable in a folder's name is not set, or a key was deleted (`~paths`).
    """
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    OmegaConf.register_new_resolver("oc.env", _keep_reference, replace=True)
    paths = OmegaConf.select(config, "paths")
    # lightning-hydra-template calls paths.data paths.data_dir
    if known := OmegaConf.is_dict(paths) and "data_dir" not in paths:
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
    problems = [f"'{key}' is missing; a run needs it." for key in REQUIRED if key not in tree]
    if problems:
        raise ConfigError(*problems)
    tree["paths"] = _fill(tree["paths"], "paths", problems)
    tree["data"] = {
        k: _fill(v, f"data.{k}", problems) if k in FOLDERS else v for k, v in tree["data"].items()
    }
    if problems:
        raise ConfigError(*problems)
    return tree


def fill_variables(tree: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the configuration with the values of variables, and append a sentence to `problems` for each unusable one."""
    for key in SAVED:
        problems += [
            f"{where}={text!r} would be written into the run folder with the variable's value; if that is not a secret, "
            "use $NAME, which your shell replaces; in cluster.setup the job's shell does it: 'export NAME=$NAME'."
            for where, text in _find_references(tree.get(key), key)
        ]
    return {k: v if k in SAVED else _fill(v, k, problems) for k, v in tree.items()}


def _keep_reference(name: str, *default: str | None) -> str:
    return f"${{oc.env:{','.join([name, *('null' if d is None else d for d in default)])}}}"


def _find_references(value: Any, where: str) -> list[tuple[str, str]]:
    """Return the key and value of each string that refers to a variable."""
    if isinstance(value, Mapping):
        return [found for k, v in value.items() for found in _find_references(v, f"{where}.{k}")]
    if isinstance(value, list):
        return [found for v in value for found in _find_references(v, where)]
    return [(where, value)] if isinstance(value, str) and VARIABLE.search(value) else []


def _fill(value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _fill(v, f"{where}.{k}", problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, where, problems) for v in value]
    if not isinstance(value, str):
        return value
    for name, default in VARIABLE.findall(value):
        if name not in os.environ and not default:
            problems.append(f"{where}={value!r}: the environment variable {name} is not set here; export it.")
    found = VARIABLE.sub(lambda m: os.environ.get(m[1], m[2] or m[0]), value)
    return None if found == "null" and value != found else found
