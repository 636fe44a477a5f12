"""Where a run comes from: the commit, changes, and the versions of packages."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from train_anywhere.errors import SubmitError

FILES = "ls-files -z -t --cached --others --exclude-standard"
STATUS = "status -z --porcelain=v2 --branch --no-ahead-behind --no-renames --untracked-files=no"
"""Prints entries: those with # are headers, all others are changes (git-scm.com/docs/git-status, Porcelain Format Version 2)."""

PACKAGES = {"lightning": ("lightning", "torch"), "keras": ("keras", "tensorflow", "tensorflow-cpu")}
"""Distributions whose versions a run records, by framework."""

UNUSED_FOLDERS = ("tests/", "engine/tests/", "engine/benchmarks/", "wheels/")
"""Folders that no run reads. They are half of the files, and run folders count against quotas of files."""

SENT = ".remote"
"""Folder with what `train_anywhere.remote` records of its transfers, on the machine that gets them."""

TIMEOUT_S, START_TIMEOUT_S = 120.0, 5.0
"""Time limit of one git command, which looks at every tracked file, on a disk that may be slow; and at the start of a run on this machine,
which can do without the commit."""


@dataclass(frozen=True)
class GitState:
    """The state of a folder under git.

    Attributes:
        tracked: files that git tracks, including deleted ones, and submodules.
        untracked: files that are not ignored, and folders of other repositories (with a slash at the end).
        commit: the current commit; None before the first.
        changed: whether a tracked file differs from the commit or is in conflict. Changes in `UNUSED_FOLDERS` do not count.
    """

    tracked: list[str]
    untracked: list[str]
    commit: str | None
    changed: bool


def read_state(root: Path) -> GitState | None:
    """Return the state of the folder `root`. None outside a git repository.

    A folder that `train_anywhere.remote` has filled has the state that was sent with its files. Raises SubmitError if git does not answer.
    """
    if sent := _read_sent(root):
        return sent
    listed = _git(root, FILES.split())
    if listed is None:
        return None
    files = [entry.split(" ", 1) for entry in listed]
    commit, changed = _read_commit(root) or (None, True)
    # a file in conflict is listed three times
    tracked = dict.fromkeys(path for tag, path in files if tag != "?")
    return GitState([*tracked], [path for tag, path in files if tag == "?"], commit, changed)


def describe_code(root: Path) -> dict[str, Any]:
    """Return commit and changes of a folder, as run.json has them, if git is quick."""
    known = None
    with suppress(SubmitError):
        known = _read_commit(root, START_TIMEOUT_S)
    return dict(zip(("commit", "dirty"), known or (None, None), strict=True))


def read_versions(framework: str) -> dict[str, str]:
    """Return the versions of Python and of the packages of a framework."""
    found = {"python": platform.python_version()}
    for name in ("train-anywhere", *PACKAGES.get(framework, ())):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _read_commit(root: Path, timeout: float | None = None) -> tuple[str | None, bool] | None:
    """Return the current commit, if any, and whether a tracked file differs."""
    if sent := _read_sent(root):
        return sent.commit, sent.changed
    unused = (f":(exclude){folder}" for folder in UNUSED_FOLDERS)
    status = _git(root, [*STATUS.split(), "--", ".", *unused], timeout)
    if status is None:
        return None
    commit = next((e.split()[2] for e in status if e.startswith("# branch.oid ")), "(initial)")
    return None if commit == "(initial)" else commit, any(e[0] != "#" for e in status)


def _read_sent(root: Path) -> GitState | None:
    """Return the state that a transfer from another machine has recorded, if any."""
    try:
        commit, changed = (root / SENT / "commit").read_text().split()
        names = os.fsdecode((root / SENT / "sent").read_bytes()).split("\0")
    except (OSError, ValueError):
        return None
    tracked = [name for name in names if name and not name.startswith("configs/local/")]  # not in git either
    return GitState(tracked, [], None if commit == "none" else commit, changed == "changed")


def _git(root: Path, words: list[str], timeout: float | None = None) -> list[str] | None:
    """Return the entries that a git command prints. None if it fails."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root), *words]
    environ, timeout = {**os.environ, "LC_ALL": "C"}, timeout or TIMEOUT_S  # git prints English
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise SubmitError(
            f"git did not answer within {timeout:g} s, and a submission needs its list of files; see what "
            f"`git -C {root} status` waits for."
        ) from None
    return None if done.returncode else [e for e in os.fsdecode(done.stdout).split("\0") if e]
