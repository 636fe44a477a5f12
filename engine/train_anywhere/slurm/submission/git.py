"""Read the state of the project from git: its files, the commit, and whether files differ from it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.slurm.submission.exclusions import UNUSED_FOLDERS

FILES = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
STATUS = ("status", "-z", "--porcelain=v2", "--branch", "--no-ahead-behind", "--no-renames", "--untracked-files=no")  # fmt: skip
"""Prints entries: those with # are headers, all others are changes (git-scm.com/docs/git-status, Porcelain Format Version 2)."""

TIMEOUT_S = 120.0
"""Time limit of one git command. Git looks at every tracked file, on a disk that may be slow."""


@dataclass(frozen=True)
class GitState:
    """The state of a folder under git.

    Attributes:
        tracked: files that git tracks, including deleted ones, and submodules.
        untracked: files that are not ignored, and folders of other repositories (with a slash at the end).
        commit: the current commit; None before the first.
        changed: whether a tracked file differs from the commit or is in conflict. Changes of the tests do not count.
    """

    tracked: list[str]
    untracked: list[str]
    commit: str | None
    changed: bool


def read_state(root: Path) -> GitState | None:
    """Return the state of the folder `root`; None without git, or outside a repository.

    Raises:
        SubmitError: git does not answer.
    """
    listed = _git(root, *FILES)
    if listed is None:
        return None
    files = [entry.split(" ", 1) for entry in listed]
    status = _git(root, *STATUS, "--", ".", *(f":(exclude){folder}" for folder in UNUSED_FOLDERS)) or [
        "? git failed"
    ]
    commit = next((e.split()[2] for e in status if e.startswith("# branch.oid ")), "(initial)")
    tracked = dict.fromkeys(
        path for tag, path in files if tag != "?"
    )  # a file in conflict is listed three times
    return GitState(
        tracked=list(tracked),
        untracked=[path for tag, path in files if tag == "?"],
        commit=None if commit == "(initial)" else commit,
        changed=any(e[0] != "#" for e in status),
    )


def _git(root: Path, *words: str) -> list[str] | None:
    """Return the entries that a git command prints; None if it fails. The options prevent locks and a file system monitor."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root), *words]
    environ = {**os.environ, "LC_ALL": "C"}  # git prints English
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise SubmitError(
            f"git did not answer within {TIMEOUT_S:g} s, and a submission needs its list of files; see what "
            f"`git -C {root} status` waits for."
        ) from None
    return None if done.returncode else [e for e in os.fsdecode(done.stdout).split("\0") if e]
