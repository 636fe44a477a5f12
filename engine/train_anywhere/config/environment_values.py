"""Values of `${oc.env:NAME}`. A run folder holds the name of the variable, never its value, which may be a secret.

Each rank reads the value from its own environment. `paths`, `data.dir` and `data.cache` are exceptions: their values are read when the
command starts, because they name folders, which are not secret and needed before the ranks start.
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

EXACT = ("program",)
"""Keys whose strings belong to someone else's program, which gets them as they are."""

FOLDERS = ("dir", "cache")
"""Keys of `data` that name folders."""

SAVED = ("cluster", "container", "name")
"""Keys whose values are written into the batch script (two sections) or name the run folder; they can't refer to a variable."""


def to_plain_tree(config: Any) -> dict[str, Any]:
    """Convert the DictConfig that Hydra composed to dicts and lists.

    All interpolations are resolved, except `${oc.env:NAME}` outside of folder names.

    Raises:
        ConfigError: a variable in a folder name is not set, or a required key was deleted (`~paths`).
    """
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    OmegaConf.register_new_resolver("oc.env", _keep_reference, replace=True)
    paths = OmegaConf.select(config, "paths")
    # configurations from lightning-hydra-template refer to paths.data as paths.data_dir
    if added := OmegaConf.is_dict(paths) and "data_dir" not in paths:
        OmegaConf.update(config, "paths.data_dir", "${paths.data}", force_add=True)
    try:
        values = {str(key): config[key] for key in config if key != "hydra"}
        tree: dict[str, Any] = {
            k: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v
            for k, v in values.items()
        }
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    if added:
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
    """Return the configuration with the values of the variables; append a message to `problems` for each invalid reference."""
    for section in SAVED:
        problems += [
            f"{key}={text!r} would be written into the run folder with the variable's value; if it is not a secret, "
            "type $NAME instead, so that your shell inserts it; in cluster.setup, the job's shell inserts it: 'export NAME=$NAME'."
            for key, text in _find_references(tree.get(section), section)
        ]
    return {k: v if k in (*SAVED, *EXACT) else _fill(v, k, problems) for k, v in tree.items()}


def _keep_reference(name: str, *default: str | None) -> str:
    """Resolve `${oc.env:NAME,default}` to itself."""
    return f"${{oc.env:{','.join([name, *('null' if d is None else d for d in default)])}}}"


def _find_references(value: Any, key: str) -> list[tuple[str, str]]:
    """Return the key and value of each string that refers to a variable."""
    if isinstance(value, Mapping):
        return [found for k, v in value.items() for found in _find_references(v, f"{key}.{k}")]
    if isinstance(value, list):
        return [found for v in value for found in _find_references(v, key)]
    return [(key, value)] if isinstance(value, str) and VARIABLE.search(value) else []


def _fill(value: Any, key: str, problems: list[str]) -> Any:
    """Return `value` with the variables replaced by their values or defaults."""
    if isinstance(value, Mapping):
        return {k: _fill(v, f"{key}.{k}", problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_fill(v, key, problems) for v in value]
    if not isinstance(value, str):
        return value
    for name, default in VARIABLE.findall(value):
        if name not in os.environ and not default:
            problems.append(f"{key}={value!r}: the environment variable {name} is not set here; export it.")
    filled = VARIABLE.sub(lambda m: os.environ.get(m[1], m[2] or m[0]), value)
    return None if filled == "null" and value != filled else filled
