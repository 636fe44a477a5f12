"""Copies of run folders between this machine and a host: `jobs.py pull` and `jobs.py push`."""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.config.keys import flatten, unflatten
from train_anywhere.config.load import FOLDERS
from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.remote.connection import Connection
from train_anywhere.remote.hosts import read_host
from train_anywhere.remote.remote_jobs import query
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.slurm.submission.prepare import refuse_second_job

OPTIONS = ("-rltz", "--safe-links", "--partial-dir=.rsync-partial")
"""Options of rsync for run folders: a copy that was cut continues."""

OF_A_PLACE = ("jobs.txt", "job.sbatch", "job.pbs", "lock", "bad_nodes")
"""Files that mean something only where the run was: the ids of its jobs would be those of other jobs elsewhere."""

LARGE = ("code*", "before-*", "exports", "profile", "wandb", "mlruns", "evaluations/job-*", "checkpoints/*/")
"""Files that are pulled with `--all` only."""

ADOPT = "import sys; sys.path[:1] = ['engine']; from train_anywhere.remote.run_copies import {0}; {0}(*sys.argv[1:])"
"""Program for the Python of the project there, which calls a function of this module with its arguments."""


def pull(name: str, run: str | None, results: Path, everything: bool) -> list[Path]:
    """Copy runs of a host below `results`: `everything`, or without code and with the best checkpoint only; return their folders.

    Raises:
        SubmitError: there is no such run, or a run was continued here since.
        ProjectError: the host can't be reached. Typed again, the copy continues.
    """
    connection, done = Connection(read_host(name)), []
    answer = query(connection, ["src/jobs.py", "status", *([run] if run else []), "--json"])
    for report in json.loads(answer)["runs"]:
        source, names = report["path"], (str(report["name"]), str(report["id"]))
        if any(not one or "/" in one or one.startswith(".") for one in names):
            raise SubmitError(
                f"{name} has a run with the name {'/'.join(names)!a}, which is no folder of a run."
            )
        target = results.joinpath(*names)
        info = connection.capture(f"cat -- {shlex.quote(f'{source}/run.json')}", login=False).stdout
        _refuse_older(_prepare(RunDir(target)), _starts(json.loads(info or "{}")), str(target))
        left_out = [f"--exclude=/{file}" for file in (*OF_A_PLACE, *(() if everything else LARGE))]
        connection.rsync(source, [*OPTIONS, *left_out], (":./", f"{target}/"))
        with suppress(FileNotFoundError):
            best = "" if everything else read_text(target / "checkpoints" / "best").strip()
            if best.isdigit():
                connection.rsync(source, OPTIONS, (f":./checkpoints/{best}", f"{target}/checkpoints/"))
        adopt(target, str(Path(source).parents[2]))
        done.append(target)
    return done


def push(name: str, run: RunDir) -> str:
    """Copy a run to a host that has the project, and return its folder there. Raises like `pull`."""
    connection, target = Connection(read_host(name)), f"results/{run.path.parent.name}/{run.id}"
    folder, starts = json.loads(query(connection, ["-c", ADOPT.format("prepare"), target]))
    _refuse_older(starts, _starts(run.read_info()), f"{target} on {name}")
    left_out = [f"--exclude=/{file}" for file in OF_A_PLACE]
    connection.rsync(f"{folder}/{target}", [*OPTIONS, *left_out], (f"{run.path}/", ":./"))
    query(connection, ["-c", ADOPT.format("adopt"), target, str(ROOT)])
    return target


def prepare(folder: str) -> None:
    """Make a run folder in this project, and print the project's folder and the starts of the run as JSON."""
    print(json.dumps([str(ROOT), _prepare(RunDir(ROOT / folder))]))


def adopt(folder: str | Path, root: str) -> None:
    """Let a copied run, which was below the project `root`, be resumed here: with the folders of this project."""
    run = RunDir(ROOT / folder)
    flat = flatten(read_frozen(run)) | {"paths.results": str(run.path.parents[1])}
    for key in FOLDERS:
        if str(flat.get(key)).startswith(f"{root}/"):
            flat[key] = f"{ROOT}{flat[key].removeprefix(root)}"
    write_atomic(run.config, yaml.safe_dump(unflatten(flat), sort_keys=False))


def _prepare(run: RunDir) -> list[str]:
    """Make a run folder that a copy may replace, and return its starts. Raises CheckpointError, SubmitError: it is in use."""
    if run.read_info():
        RunLock(run).refuse_if_held()
        refuse_second_job(run, False)
    run.path.mkdir(parents=True, exist_ok=True)
    return _starts(run.read_info())


def _starts(info: Mapping[str, Any]) -> list[str]:
    return [attempt["started"] for attempt in info.get(ATTEMPTS) or ()]


def _refuse_older(present: list[str], new: list[str], where: str) -> None:
    if present != new[: len(present)]:
        raise SubmitError(
            f"{where} was continued since, and the copy would replace what it has trained; copy it the other way, or "
            "pull into another folder: --results DIR."
        )
