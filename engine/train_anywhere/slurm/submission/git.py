"""What git knows about the project: its files, the commit, and whether anything differs from it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.slurm.submission.left_out import UNREAD

FILES = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
STATUS = ("status", "-z", "--porcelain=v2", "--branch", "--no-ahead-behind", "--no-renames", "--untracked-files=no")  # fmt: skip
"""Entries that begin with # are headers, all others are changes: git-scm.com/docs/git-status, Porcelain Format Version 2."""

TIMEOUT_S = 120.0
"""For one command of git, which looks at every tracked file, on a disk that may be slow."""


@dataclass(frozen=True)
class GitState:
    """The state of a folder under git.

    Attributes:
        tracked: files that git tracks, deleted ones included, and submodules.
        untracked: files, and folders of other repositories (with a slash at the end), that are not ignored.
        commit: the commit checked out; None before the first.
        changed: whether a tracked file differs from the commit or is in conflict; changes of the tests don't count.
    """

    tracked: list[str]
    untracked: list[str]
    commit: str | None
    changed: bool


def read_state(root: Path) -> GitState | None:
    """The state of the folder `root`; None without git, or if it is in no repository.

    Raises:
        SubmitError: git does not answer.
    """
    listed = _git(root, *FILES)
    if listed is None:
        return None
    files = [entry.split(" ", 1) for entry in listed]
    status = _git(root, *STATUS, "--", ".", *(f":(exclude){folder}" for folder in UNREAD)) or ["? git failed"]
    commit = next((e.split()[2] for e in status if e.startswith("# branch.oid ")), "(initial)")
    tracked = dict.fromkeys(path for tag, path in files if tag != "?")  # a file in conflict is listed thrice
    return GitState(
        tracked=list(tracked),
        untracked=[path for tag, path in files if tag == "?"],
        commit=None if commit == "(initial)" else commit,
        changed=any(e[0] != "#" for e in status),
    )


def _git(root: Path, *words: str) -> list[str] | None:
    """The entries that a command of git prints; None if it fails. It changes nothing, and runs no hook or monitor."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root), *words]
    environ = {**os.environ, "LC_ALL": "C"}  # git reads no translations
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise SubmitError(
            f"git did not answer within {TIMEOUT_S:g} s, and is asked which files are the project's; see what "
            f"`git -C {root} status` waits for."
        ) from None
    return None if done.returncode else [e for e in os.fsdecode(done.stdout).split("\0") if e]
