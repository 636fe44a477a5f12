"""Submit the members of a Hydra program, for `hydra/launcher=anywhere` (see `train_anywhere.plugins.anywhere`)."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

from train_anywhere.commands.run import FIXED, job_problems
from train_anywhere.config.cluster import Cluster
from train_anywhere.config.command.compose import PROGRAM_FOLDERS, list_groups
from train_anywhere.config.command.diagnose import compose_diagnosed
from train_anywhere.config.other_names import OTHER_WAYS, keys_meant
from train_anywhere.config.paths import escape_dollars, make_run_name
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import ConfigError, ProjectError, SubmitError, listed
from train_anywhere.files import WORK
from train_anywhere.files.root import find_top, resolve_as_typed
from train_anywhere.launch.command import run_command
from train_anywhere.plugins.anywhere import MEMBER
from train_anywhere.slurm.presets import resolve_current
from train_anywhere.slurm.submission.prepare import start
from train_anywhere.training.preflight import CHECKS

SECTIONS = {
    "trainer.": ("nodes", "devices", "total_devices", "accelerator"),
    "program.": ("processes", "metrics", "resume_args"),
    "container.": ("image", "mounts", "python"),
    "paths.": ("results",),
    "cluster.": [f.name for f in fields(Cluster) if f.name not in ("name", "scheduler", "site", "launch")],
    "": ("cluster", "container", "name", "note", "launch", "wait", "after", "dry_run", "trust", "on"),
}
"""Keys of the launcher, by the section that they have in `src/run.py`."""

OPEN = ("monitor", "checkpoint", "features")
"""Sections that are typed whole: hydra.launcher.monitor.serve=true."""

KEYS = {name: f"{section}{name}" for section, names in SECTIONS.items() for name in names}
NAMES = {key: name for name, key in KEYS.items()}

SUBMITIT = {"submitit_folder": "use hydra.launcher.results", "stderr_to_stdout": "leave it out"}
"""Keys of hydra-submitit-launcher that have no other name in `config.other_names`."""

TYPED = re.compile(r"(?<![\w.])(?:(?:cluster|trainer|program|paths)\.(?!site)|(?=(?:cluster|wait|dry_run)=))")
"""Matches the start of a key of `src/run.py` in a message."""


def main(arguments: Sequence[str]) -> int:
    """Submit a request from standard input; write the states of its members to the descriptor that is named."""
    request = json.load(sys.stdin)
    sys.argv[1:] = []

    def submit_as_typed() -> int:
        try:
            if request["keys"].get("on"):
                return submit_there(request)
            states = submit(request)
        except ConfigError as error:
            raise ConfigError(*(TYPED.sub("hydra.launcher.", one) for one in error.problems)) from None
        with open(int(arguments[0]), "w") as file:
            file.write(json.dumps(states or []))
        return 0

    return run_command(submit_as_typed, overrides=False)


def submit(request: Mapping[str, Any]) -> list[str] | None:
    """Submit the members; return why each has no result, "" if it has one or the submission does not wait. None: a dry run."""
    keys = request["keys"]
    PROGRAM_FOLDERS[:0] = [Path(request["file"]).parent, Path.cwd()]
    dry = keys.get("dry_run") not in (None, False)
    problems = key_problems(keys)
    if request["results"] and not dry and not keys.get("wait"):
        why = "this sweeper decides by what the members return, but a submission returns before they ran"
        problems.append(f"{why}; add hydra.launcher.wait=true.")
    if problems:
        raise ConfigError(*problems)
    program, values = find_program(request), job_values(request)
    for name in ("members_per_gpu", "members_per_node") if len(request["members"]) == 1 else ():
        values.pop(f"cluster.{name}", None)  # the last one of a sweeper
    tree, typed, trees = compose_job(values), [f"{key}={value}" for key, value in values.items()], []
    for member, state in zip(request["members"], request["states"], strict=True):
        words = [*program["command"], *request["kept"], MEMBER + "{args.member}", *member]
        section = tree["program"] | program | {"command": words}
        trees.append(deepcopy(tree) | {"program": section, "args": {"member": state}})
    overrides = [[*typed, *member] for member in request["members"]]
    results = start(trees, overrides, job_problems, CHECKS.refuse_unreadable)
    return None if dry else [str(one) if isinstance(one, SubmitError) else "" for one in results]


def submit_there(request: Mapping[str, Any]) -> int:
    """Start the command as it was typed on the host that `on` names; return its exit code. Raises what `run_once` raises."""
    from train_anywhere.remote.connection import read_host  # a submission here needs no ssh
    from train_anywhere.remote.remote_command import run_once

    host, program = read_host(request["keys"]["on"]), find_program(request)
    if program["copied"] != str(WORK) or program["folder"] != str(WORK):
        raise ConfigError(
            f"hydra.launcher.on={host.name} sends {WORK}: start a program of it in this folder."
        )
    words = [os.path.relpath(word, WORK) if os.path.isabs(word) else word for word in program["command"]]
    words += [word for word in request["typed"] if not word.startswith("hydra.launcher.on=")]
    if host.cluster and "cluster" not in request["keys"]:
        words.append(f"hydra.launcher.cluster={host.cluster}")
    code = run_once(host, words)
    if not code:
        print(f"On {host.name}: python -m train_anywhere status --on {host.name}", file=sys.stderr)
    return code


def key_problems(keys: Mapping[str, Any]) -> list[str]:
    """Return a message for each key that the launcher does not have, with what to type instead."""
    known, problems = listed(list_groups()["cluster"]), list[str]()
    if not keys.get("cluster"):
        problems.append(f"hydra.launcher.cluster is missing; name one of {known}.")
    elif keys["cluster"] == "local":
        problems.append(
            "hydra.launcher.cluster=local: leave hydra/launcher=anywhere out to run members here."
        )
    wrong = [key for key in OPEN if not isinstance(keys.get(key, {}), dict)]
    problems += [f"hydra.launcher.{key} is a section: hydra.launcher.{key}.KEY=VALUE." for key in wrong]
    for key in sorted(keys.keys() - KEYS.keys() - {*OPEN}):
        meant = [f"use hydra.launcher.{NAMES[one]}" for one in keys_meant(key, {}) if one in NAMES]
        way = [*filter(None, [SUBMITIT.get(key), *meant, OTHER_WAYS.get(key)])]
        hint = f"; {way[0]}." if way else did_you_mean(key, [*KEYS, *OPEN])
        problems.append(f"hydra.launcher.{key} is not a key of this launcher{hint}")
    return problems


def job_values(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the keys of `src/run.py`."""
    given = {"name": make_run_name(request["name"]), "paths.results": str(WORK / "results")}
    if request["direction"] in ("minimize", "maximize"):
        given |= {"checkpoint.monitor": "objective", "checkpoint.mode": request["direction"][:3]}
    for key, value in request["keys"].items():
        given |= {f"{key}.{name}": one for name, one in value.items()} if key in OPEN else {KEYS[key]: value}
    return given | {"paths.results": escape_dollars(os.path.abspath(str(given["paths.results"])))}


def compose_job(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a job. Raises ConfigError for an unknown cluster or container."""
    words = [f"{group}={values[group]}" for group in ("cluster", "container") if values.get(group)]
    tree = compose_diagnosed([*resolve_current(words), *FIXED])
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if key not in ("cluster", "container"):
            (tree[section] if section else tree)[name] = value
    return tree


def find_program(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return command, folder and copied of `config.schema.Program` for a process of Python."""
    file, here, module = resolve_as_typed(request["file"]), resolve_as_typed("."), request["module"]
    installed = any(file.is_relative_to(folder) for folder in (sys.prefix, sys.base_prefix))
    if not file.is_file() and not module:
        raise ProjectError("a job can't start a program that has no file: write it into a script.")
    script = file.name if installed and file.suffix != ".py" else str(file)
    near = here.is_relative_to(WORK) and (installed or file.is_relative_to(WORK))
    top = WORK if near else find_top(file.parent)
    return {"command": ["-m", module] if module else [script], "copied": str(top), "folder": str(here)}
