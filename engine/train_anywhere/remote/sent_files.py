"""The files that travel to a host, and their transfer into a folder that belongs to one branch of one copy of the project."""

import fcntl
import hashlib
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.files import WORK
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.removal import MARKER
from train_anywhere.files.terminal.printable import printable
from train_anywhere.remote.connection import Connection, Host, shell_path
from train_anywhere.runs import provenance
from train_anywhere.runs.reopen.trust import state_folder
from train_anywhere.slurm.submission.snapshot import list_names, why_not_copied

NOT_SENT = tuple(folder for folder in provenance.UNUSED_FOLDERS if folder != "wheels/")
"""Folders that no command there needs; wheels/ may have the engine."""

GENERATED = ("pyvenv.cfg", "conda-meta", MARKER)
"""Entries of environments and run folders, which are not sent even if git does not ignore them."""

LISTED = 5
"""Most files that are named one by one after a transfer; of each reason not to send files it is four times as many."""

OPTIONS = ("-c", "-ltz", "--from0", "--files-from=-", "--out-format=%n")
"""Options of rsync, which the ones of macOS know too; no option deletes. With sizes and times (without -c) it would not see a second
change in the same second."""

NEW, OLD = ("-E", "--no-implied-dirs", "--copy-unsafe-links"), ("-p", "--keep-dirlinks")
"""More options for a protocol from 30 on, and before that: openrsync and rsync 2.6.9 of macOS also send folders."""

PREPARE = r"""
export LC_ALL=C
owner={owner}
mkdir -p -- {folder} && cd -- {folder} || exit 45
if [ -e .remote/owner ]; then
    [ "$(head -n 1 .remote/owner)" = "$owner" ] || {{ tail -n 1 .remote/owner; exit 42; }}
elif [ ! -d .remote ] && [ -n "$(ls -A)" ]; then exit 43
else mkdir -p .remote && printf '%s\n%s\n' "$owner" {described} > .remote/mark && mv .remote/mark .remote/owner || exit 45
fi
touch .remote/sent && sort -zu > .remote/new || exit 45
only() {{ sort -z "$1" "$2" "$2" | uniq -zu; }}
others=$(only .remote/new .remote/sent | while IFS= read -r -d '' name; do
    if [ ! -L "$name" ]; then
        while [ ! -e "$name" ] && [ "$name" != "${{name%/*}}" ]; do name=${{name%/*}}; done
        if [ ! -e "$name" ] || [ -d "$name" ]; then continue; fi
    fi
    printf '%s\0' "$name" | only - .remote/sent
done | tr '\0' '\n' | head -n 5)
if [ -n "$others" ]; then printf '%s\n' "$others"; exit 44; fi
here=$(pwd -P)
only .remote/sent .remote/new | while IFS= read -r -d '' name; do
    parent=$(dirname -- "$name") base=${{name##*/}}
    [ "$parent" = . ] && inside=$here || inside=$here/$parent
    if [ "$(cd -P -- "$parent" 2>/dev/null && pwd)" = "$inside" ]; then
        rm -f -- "./$name" "./$parent/__pycache__/${{base%.py}}".*.pyc
        rmdir -- "./$parent/__pycache__" 2>/dev/null
        [ "$parent" = . ] || rmdir -p --ignore-fail-on-non-empty -- "$parent"
    fi
done
mv .remote/new .remote/sent || exit 45
printf '\n@folder %s\n' "$PWD"
"""
"""Script that checks and marks the folder, deletes what earlier transfers have sent and this one does not, and records the files.

It reads their names. A link on the way keeps a file."""

FINISH = r"""
find .remote/requests -mindepth 2 -name code -mtime +30 -printf '%h\0' 2>/dev/null | xargs -0r rm -r --
printf '%s\n' {commit} > .remote/commit
"""
"""Script that records the commit of the files, and deletes answers of requests after 30 days: files count against quotas."""


@dataclass(frozen=True)
class SentFiles:
    """The files to send, relative to the project.

    `commit` is the current one and whether anything differs from it, as `provenance.read_state` reads them there.
    """

    names: list[str]
    commit: str


def find_files() -> SentFiles:
    """Return the files that git tracks or does not ignore and those of configs/local, without keys, data and environments.

    Notes are printed about what is left out.
    """
    left_out: dict[str, str] = {}
    known = provenance.read_state(WORK)
    new, listed = list_names(WORK, WORK / "results", known, left_out, NOT_SENT)
    local = (str(p.relative_to(WORK)) for p in (WORK / "configs" / "local").rglob("*") if p.is_file())
    names = [one for name in dict.fromkeys([*listed, *local]) for one in _files_of(WORK, name, left_out)]
    for why in dict.fromkeys(left_out.values()):
        these = [printable(name) for name in left_out if left_out[name] == why]
        more = f" and {len(these) - 4 * LISTED} more" if len(these) > 4 * LISTED else ""
        print(f"note: not sent, since {why}: {', '.join(these[: 4 * LISTED])}{more}", file=sys.stderr)
    changed = known is None or known.changed or bool(new)
    commit = known.commit if known and known.commit else "none"
    return SentFiles(names, f"{commit} {'changed' if changed else 'unchanged'}")


def _files_of(root: Path, name: str, left_out: dict[str, str]) -> Iterator[str]:
    """Yield a file, or the files of a folder, which is a submodule or another repository; add others to `left_out`."""
    path = root / name
    if not os.path.lexists(path) or _is_generated(path.parent, root):
        return
    if why := why_not_copied(root, name):
        left_out[name] = why
    elif path.is_symlink():
        outside = os.path.relpath(os.path.join(path.parent, os.readlink(path)), root).startswith("..")
        if (outside or os.path.isabs(os.readlink(path))) and not path.is_file():
            left_out[name] = "it is a link to a folder or to nothing, outside of the project"
        else:
            yield name
    elif path.is_dir():
        inner: dict[str, str] = {}
        for one in list_names(path, path / "results", provenance.read_state(path), inner, ())[1]:
            yield from _files_of(root, os.path.join(name, one), left_out)
        left_out.update({os.path.join(name, one): why for one, why in inner.items()})
    else:
        yield name


@cache
def _is_generated(folder: Path, root: Path) -> bool:
    if folder == root:
        return False
    return any(os.path.lexists(folder / name) for name in GENERATED) or _is_generated(folder.parent, root)


def remote_folder(host: Host) -> str:
    """Return a word of bash for the folder of the project on a host."""
    return shell_path(host.folder.replace("{branch}", re.sub(r"[^\w.-]", "-", _branch()) or "none"))


@cache
def _branch() -> str:
    asked = ["git", "-C", str(WORK), "symbolic-ref", "--short", "-q", "HEAD"]
    with suppress(OSError):  # no git
        return os.fsdecode(subprocess.run(asked, capture_output=True).stdout).strip()
    return ""


def transfer(connection: Connection, files: SentFiles) -> str:
    """Send the files that differ, delete what an earlier transfer has sent and this one has not, and return the folder there.

    Raises SubmitError: the folder has other files or those of another branch, or its disk is full. Raises LostConnectionError: typed again,
    the command continues.
    """
    name, protocol = connection.host.name, connection.rsync_protocol()
    exists = os.path.lexists if protocol >= 30 else os.path.exists  # openrsync rejects a broken link
    present = [one for one in files.names if exists(WORK / one)]
    names = b"".join(sorted({os.fsencode(one) + b"\0" for one in present}))  # as .remote/sent
    state = state_folder() / "remote"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (machine := state / "machine").exists():
        write_atomic(machine, os.urandom(8).hex())
    mark = hashlib.sha256(f"{machine.read_text()} {WORK} {_branch()}".encode(errors="surrogateescape"))
    owner = mark.hexdigest()[:16]
    with open(state / f"{name}-{owner}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = _prepare(connection, names, owner)
        options = [*OPTIONS, *(NEW if protocol >= 30 else OLD)]
        finish = FINISH.format(commit=files.commit)
        printed = connection.rsync(folder, options, (f"{WORK}/", ":."), names, finish)
    sent = [printable(line) for line in printed.splitlines() if not line.endswith("/")]
    shown = f": {', '.join(sent)}" if 0 < len(sent) <= LISTED else ""
    print(f"Sent {len(sent)} of {len(present)} files to {name}:{folder}{shown}", file=sys.stderr, flush=True)
    return folder


def _prepare(connection: Connection, names: bytes, owner: str) -> str:
    """Check and mark the folder there, and return it."""
    host, described = connection.host, f"branch {_branch() or '(none)'} of {socket.gethostname()}:{WORK}"
    script = PREPARE.format(owner=owner, described=shlex.quote(described), folder=remote_folder(host))
    done = connection.capture(script, names, login="$" in host.folder)  # a profile may take seconds
    where, file = f"{host.folder} on {host.name}", f"configs/hosts/{host.name}.yaml"
    said = ["", *map(printable, done.stdout.strip().splitlines())]
    messages = {
        42: f"{where} has {said[-1]}, and this is {described}: put {{branch}} into `folder:` of {file} for a folder per branch, or replace "
        f"its files by these: `ssh {host.ssh} {shlex.quote(f'rm {remote_folder(host)}/.remote/owner')}`.",
        43: f"{where} has files that were not sent from here: name a folder that does not exist yet in `folder:` of {file}.",
        44: f"{where} has files that were not sent from here and would be replaced: {', '.join(said[1:][-5:])}. Rename one.",
    }
    if done.returncode or not said[-1].startswith("@folder /"):
        raise SubmitError(messages.get(done.returncode) or connection.describe_failure(done, where))
    return done.stdout.strip().splitlines()[-1].removeprefix("@folder ")
