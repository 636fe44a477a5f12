"""Copies of run folders between this machine and a host: `jobs.py pull` and `jobs.py push`."""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.config.keys import flatten, unflatten
from train_anywhere.config.load import FOLDERS
from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.removal import MARKER
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.remote.connection import Connection
from train_anywhere.remote.hosts import read_host
from train_anywhere.remote.remote_jobs import query, read_prepared, read_reports
from train_anywhere.runs.folder import ATTEMPTS, JOBS, RunDir, claim_named, parse_info
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.frozen import read_frozen, refuse_links
from train_anywhere.runs.reopen.trust import is_own, remember
from train_anywhere.slurm.scheduler.client import SCRIPT
from train_anywhere.slurm.submission.prepare import refuse_second_job

OPTIONS = ("-rtz", "--partial-dir=.rsync-partial")
"""Options of rsync for run folders: a copy that was cut continues. Links stay where they are: they could lead elsewhere."""

OF_A_PLACE = (JOBS, *SCRIPT.values(), "lock", "bad_nodes", MARKER)
"""Files that mean something only where the run was: the ids of its jobs would be those of other jobs elsewhere."""

WRITTEN_HERE = "report.html"
"""A page that a browser runs: `jobs.py pull` writes its own."""

LARGE = ("code*", "before-*", "exports", "profile", "wandb", "mlruns", "evaluations/job-*", "checkpoints/*/")
"""Files that are pulled with `--all` only."""

ADOPT = "import sys; sys.path[:1] = ['engine']; from train_anywhere.remote.run_copies import {0}; {0}(*sys.argv[1:])"
"""Program for the Python of the project there, which calls a function of this module with its arguments."""


def pull(name: str, run: str | None, results: Path, everything: bool) -> list[Path]:
    """Copy runs of a host below `results`: `everything`, or without code and with the best checkpoint only; return their folders.

    Raises:
        SubmitError: there is no such run, or a run was continued here since.
        CheckpointError: its folder here is that of something else, or the files of the host are damaged.
        ProjectError: the host can't be reached. Typed again, the copy continues.
    """
    connection, done = Connection(read_host(name)), []
    words = ["src/jobs.py", "status", *([run] if run else []), "--json"]
    reports = read_reports(name, query(connection, words))
    for report in reports:
        if report.trouble:
            raise SubmitError(f"{name}: {report.trouble}")
        target, present = _prepare(results, report.name, report.id)
        info = connection.capture(f"cat -- {shlex.quote(f'{report.path}/run.json')}", login=False).stdout
        _refuse_older(present, _starts(parse_info(info or "{}", f"{name}:{report.path}")), str(target.path))
        left_out = [*OF_A_PLACE, WRITTEN_HERE, *(() if everything else LARGE)]
        if any((target.path / script).exists() for script in SCRIPT.values()):
            left_out.append("code*")  # a job that is submitted again from here runs it
        _copy(connection, str(report.path), (":./", f"{target.path}/"), left_out)
        refuse_links(target)
        with suppress(OSError, ValueError):
            best = "" if everything else read_text(target.checkpoints / "best").strip()
            if best.isdecimal():
                paths = (f":./checkpoints/{best}", f"{target.checkpoints}/")
                connection.rsync(str(report.path), OPTIONS, paths)
        _adopt(target, str(report.path.parents[1].parent))
        done.append(target.path)
    return done


def push(name: str, run: RunDir) -> str:
    """Copy a run to a host that has the project, and return its folder there. Raises like `pull`."""
    connection, names = Connection(read_host(name)), (run.path.parent.name, run.id)
    target = "/".join(("results", *names))
    folder, starts = read_prepared(name, query(connection, ["-c", ADOPT.format("prepare"), *names]))
    _refuse_older(starts, _starts(run.read_info()), f"{target} on {name}")
    _copy(connection, f"{folder}/{target}", (f"{run.path}/", ":./"), OF_A_PLACE)
    known = ["trusted"] if is_own(run.path) else []
    query(connection, ["-c", ADOPT.format("adopt"), *names, str(ROOT), *known])
    return target


def _copy(connection: Connection, folder: str, paths: tuple[str, str], left_out: Iterable[str]) -> None:
    """Copy a run folder without some files, and print a note about links and devices, which stay where they are."""
    excluded = ["--exclude=__pycache__", *(f"--exclude=/{name}" for name in left_out)]
    printed = connection.rsync(folder, [*OPTIONS, *excluded], paths) or ""
    if found := re.findall(r'skipping non-regular file "(.*)"', printed):
        more = f" and {len(found) - 5:,} more" if len(found) > 5 else ""
        print(
            one_line(f"note: not copied, since they are no files: {', '.join(found[:5])}{more}"),
            file=sys.stderr,
        )


def prepare(name: str, run_id: str) -> None:
    """Make a run folder in this project, and print the project's folder and the starts of the run as JSON."""
    print(json.dumps([str(ROOT), _prepare(ROOT / "results", name, run_id)[1]]))


def adopt(name: str, run_id: str, root: str, trusted: str = "") -> None:
    """Let a run that was copied here from the project `root` be resumed; one `trusted` there needs no `trust=true` here."""
    run = claim_named(ROOT / "results", name, run_id)
    _adopt(run, root)
    if trusted:
        remember(run.path)


def _adopt(run: RunDir, root: str) -> None:
    """Replace the folders of the project `root` in the configuration of a run by those of this project."""
    flat = flatten(read_frozen(run)) | {"paths.results": str(run.path.parents[1])}
    for key in FOLDERS:
        if str(flat.get(key)).startswith(f"{root}/"):
            flat[key] = f"{ROOT}{flat[key].removeprefix(root)}"
    write_atomic(run.config, yaml.safe_dump(unflatten(flat), sort_keys=False))


def _prepare(results: Path, name: str, run_id: str) -> tuple[RunDir, list[str]]:
    """Make a run folder that a copy may replace, and return it and its starts.

    Raises CheckpointError, SubmitError: it is the folder of something else, or in use.
    """
    run = claim_named(results, name, run_id)
    refuse_links(run)
    if info := run.read_info():
        RunLock(run).refuse_if_held()
        refuse_second_job(run, False)
    return run, _starts(info)


def _starts(info: Mapping[str, Any]) -> list[str]:
    return [attempt.get("started") or "" for attempt in info.get(ATTEMPTS) or ()]


def _refuse_older(present: list[str], new: list[str], where: str) -> None:
    if present != new[: len(present)]:
        raise SubmitError(
            f"{where} was continued since, and the copy would replace what it has trained; copy it the other way, or "
            "pull into another folder: --results DIR."
        )
