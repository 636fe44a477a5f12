"""Copies of run folders of a host: `jobs.py pull`."""

import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.config.keys import flatten, unflatten
from train_anywhere.config.load import FOLDERS
from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import loads, read_text, write_atomic
from train_anywhere.files.removal import MARKER
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.remote.connection import Connection, read_host
from train_anywhere.remote.remote_command import query
from train_anywhere.runs.folder import ATTEMPTS, JOBS, claim_named, is_string_list, parse_info
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.frozen import read_frozen, refuse_links
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


def pull(name: str, run: str | None, results: Path, everything: bool) -> list[Path]:
    """Copy runs of a host below `results`: `everything`, or without code and with the best checkpoint only; return their folders.

    Links and devices stay where they are.

    Raises:
        SubmitError: there is no such run, a run was continued here since, or the answer of the host is of another form.
        CheckpointError: its folder here is that of something else, or the files of the host are damaged.
        ProjectError: the host can't be reached. Typed again, the copy continues.
    """
    connection, done = Connection(read_host(name)), []
    words = ["src/jobs.py", "status", *([run] if run else []), "--json"]
    for there in read_folders(name, query(connection, words)):
        target = claim_named(results, there.parent.name, there.name)
        refuse_links(target)
        if info := target.read_info():
            RunLock(target).refuse_if_held()
            refuse_second_job(target, False)
        text = connection.capture(f"cat -- {shlex.quote(f'{there}/run.json')}", login=False).stdout
        starts = _starts(info)
        if starts != _starts(parse_info(text or "{}", f"{name}:{there}"))[: len(starts)]:
            raise SubmitError(
                f"{target.path} was continued since, and the copy would replace what it has trained; "
                "pull into another folder: --results DIR."
            )
        left_out = [*OF_A_PLACE, WRITTEN_HERE, *(() if everything else LARGE)]
        if any((target.path / script).exists() for script in SCRIPT.values()):
            left_out.append("code*")  # a job that is submitted again from here runs it
        excluded = ["--exclude=__pycache__", *(f"--exclude=/{name}" for name in left_out)]
        printed = connection.rsync(str(there), [*OPTIONS, *excluded], (":./", f"{target.path}/"))
        if found := re.findall(r'skipping non-regular file "(.*)"', printed):
            more = f" and {len(found) - 5:,} more" if len(found) > 5 else ""
            note = f"note: not copied, since they are no files: {', '.join(found[:5])}{more}"
            print(one_line(note), file=sys.stderr)
        refuse_links(target)
        with suppress(OSError, ValueError):
            best = "" if everything else read_text(target.checkpoints / "best").strip()
            if best.isdecimal():
                paths = (f":./checkpoints/{best}", f"{target.checkpoints}/")
                connection.rsync(str(there), OPTIONS, paths)
        # the folders of the project there become those of this one
        flat, root = flatten(read_frozen(target)), there.parents[1].parent
        flat["paths.results"] = str(target.path.parents[1])
        for key in FOLDERS:
            if str(flat.get(key)).startswith(f"{root}/"):
                flat[key] = f"{ROOT}{flat[key].removeprefix(str(root))}"
        write_atomic(target.config, yaml.safe_dump(unflatten(flat), sort_keys=False))
        done.append(target.path)
    return done


def read_folders(host: str, answer: str) -> list[Path]:
    """Return the run folders that `jobs.py status --json` has printed on a host, which may have another version.

    Raises SubmitError: a run there can't be read, or the answer is of another form.
    """
    found = []
    try:
        for run in loads(answer[answer.index("{") :])["runs"]:
            path, names, trouble = Path(run["path"]), [run["name"], run["id"]], run["trouble"]
            if not is_string_list([*names, trouble]) or [*path.parts[-2:]] != names:
                raise ValueError(f"it names the run {run}")
            if trouble:
                raise SubmitError(f"{host}: {trouble}")
            found.append(path)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SubmitError(
            f"{host}: its answer can't be read ({one_line(repr(error))[:300]}); `python src/train.py on={host} dry_run=true` sends it this "
            "version."
        ) from error
    return found


def _starts(info: Mapping[str, Any]) -> list[str]:
    return [attempt.get("started") or "" for attempt in info.get(ATTEMPTS) or ()]
