"""What git knows about the project: its files, the commit, and whether anything differs from it.

`git status` asks the disk about every tracked file, and the disks of clusters answer slowly. A snapshot reads every file
anyway, so it compares what it reads with what git has, and only what differs is for `git status` to judge.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIST = ("ls-files", "-z", "-t", "--stage", "--others", "--exclude-standard")
COMMIT = ("rev-parse", "--verify", "HEAD")
STAGED = ("diff-index", "--cached", "--quiet", "HEAD", "--", ".")


@dataclass(frozen=True)
class Known:
    """What git knows without a look at the tracked files.

    Attributes:
        tracked: mode and object name of each tracked file, such as ("100644", "8baef1b...").
        untracked: files, and folders of other repositories (with a slash at the end), that are not ignored.
        commit: the commit checked out; None before the first.
        differs: files are untracked, staged or in conflict.
    """

    tracked: dict[str, tuple[str, str]]
    untracked: list[str]
    commit: str | None
    differs: bool

    @property
    def algorithm(self) -> str:
        """What the repository makes object names with."""
        return "sha256" if any(len(name) == 64 for _, name in self.tracked.values()) else "sha1"


class Question:
    """Git is asked and works beside us until `answer` is called."""

    def __init__(self, root: Path) -> None:
        self._processes = [_start(root, *words) for words in (LIST, COMMIT, STAGED)]

    def answer(self) -> Known | None:
        """What git knows; None without git, or where the folder is in no repository."""
        (listed, failed), (commit, no_commit), (_, staged) = [_end(p) for p in self._processes]
        if failed:
            return None
        lines = [line for line in listed.split("\0") if line]
        untracked = [line[2:] for line in lines if line[0] == "?"]
        tracked, conflicts = _tracked(line[2:] for line in lines if line[0] != "?")
        differs = bool(untracked or conflicts or staged)
        return Known(tracked, untracked, None if no_commit else commit.strip(), differs)


def _tracked(lines: Iterable[str]) -> tuple[dict[str, tuple[str, str]], bool]:
    """By path; and whether there are conflicts: several stages of a file."""
    tracked, conflicts = {}, False
    for line in lines:
        facts, _, path = line.partition("\t")
        mode, name, stage = facts.split()
        tracked[path] = (mode, name)
        conflicts |= stage != "0"
    return tracked, conflicts


def object_name(algorithm: str, size: int, content: bytes = b"") -> "hashlib._Hash":
    """What git calls a file of `size` bytes: to be updated with its bytes, as far as they are not in `content`.

    Format: "blob", the size and the bytes, https://git-scm.com/book/en/v2/Git-Internals-Git-Objects.
    """
    return hashlib.new(algorithm, b"blob %d\0" % size + content, usedforsecurity=False)


def changed(root: Path, paths: list[str]) -> bool:
    """Whether git, which knows filters, line ends and submodules, calls any of the tracked `paths` changed."""
    if not paths:
        return False
    some = paths if len(paths) <= 100 else ["."]  # a command line has an end
    return bool(_end(_start(root, "status", "--porcelain", "-z", "--untracked-files=no", "--", *some))[0])


def _start(root: Path, *words: str) -> "subprocess.Popen[str] | None":
    command = ["git", "--no-optional-locks", "--literal-pathspecs", "-C", str(root), *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, "LC_ALL": "C"},
            encoding="utf-8",
            errors="surrogateescape",
            **pipes,
        )
    except FileNotFoundError:
        return None


def _end(process: "subprocess.Popen[str] | None") -> tuple[str, int]:
    """What it printed, and its exit code."""
    if process is None:
        return "", 127
    return process.communicate()[0], process.returncode
