"""What git knows about the project: its files, the commit, and whether anything differs from it.

`git status` asks the disk about every tracked file, and the disks of clusters answer slowly. A snapshot reads every file
anyway, so it compares what it reads with what git has, and only what differs is for `git status` to judge.
"""

import hashlib
import itertools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

LIST = ("ls-files", "-z", "-t", "--stage", "--others", "--exclude-standard")
COMMIT = ("-c", "core.warnAmbiguousRefs=false", "rev-parse", "--revs-only", "HEAD", "HEAD:./")
"""Without the warnings git looks for HEAD in one place, not in seven."""


@dataclass(frozen=True)
class GitState:
    """What git knows without a look at the tracked files.

    Attributes:
        tracked: mode and object name of each tracked file, such as ("100644", "8baef1b...").
        untracked: files, and folders of other repositories (with a slash at the end), that are not ignored.
        commit: the commit checked out; None before the first.
        algorithm: what the repository makes object names with, sha1 or sha256.
        differs: files are untracked, staged or in conflict. Changes that are not staged are not looked for.
    """

    tracked: dict[str, tuple[str, str]]
    untracked: list[str]
    commit: str | None
    algorithm: str
    differs: bool


class GitQuery:
    """Git is asked and works beside us until `answer` is called."""

    def __init__(self, root: Path) -> None:
        self._processes = [_start(root, *words) for words in (LIST, COMMIT)]

    def answer(self) -> GitState | None:
        """What git knows; None without git, or where the folder is in no repository."""
        (listed, failed), (named, _) = [_end(p) for p in self._processes]
        if failed:
            return None
        lines = [line for line in listed.split("\0") if line]
        untracked = [line[2:] for line in lines if line[0] == "?"]
        files = [_file(line[2:]) for line in lines if line[0] != "?"]
        tracked = {path: (mode, name) for path, mode, name in files}
        commit, tree = [*named.split(), None, None][:2]
        algorithm = "sha256" if commit and len(commit) == 64 else "sha1"
        staged = len(files) != len(tracked) or tree_name(algorithm, files) != tree
        return GitState(tracked, untracked, commit, algorithm, bool(untracked) or staged)


def _file(line: str) -> tuple[str, str, str]:
    """Path, mode and object name; a file in conflict has several lines."""
    facts, _, path = line.partition("\t")
    mode, name, _ = facts.split()
    return path, mode, name


def tree_name(algorithm: str, files: list[tuple[str, str, str]]) -> str:
    """What git would call a folder of these files, in git's order: the same name, the same files.

    Format: "tree", the size, and mode, file name, object name of each entry; see `object_name`.
    """
    content = b""
    for entry, group in itertools.groupby(files, lambda file: file[0].partition("/")[0]):
        inside = list(group)
        path, mode, name = inside[0]
        if path != entry:
            mode = "40000"
            name = tree_name(algorithm, [(p[len(entry) + 1 :], m, n) for p, m, n in inside])
        content += mode.encode() + b" " + os.fsencode(entry) + b"\0" + bytes.fromhex(name)
    return object_name(algorithm, len(content), content, kind="tree").hexdigest()


def object_name(algorithm: str, size: int, content: bytes = b"", kind: str = "blob") -> "hashlib._Hash":
    """What git calls a file of `size` bytes: to be updated with its bytes, as far as they are not in `content`.

    Format: the kind ("blob" is a file), the size and the bytes, https://git-scm.com/book/en/v2/Git-Internals-Git-Objects.
    """
    return hashlib.new(algorithm, f"{kind} {size}\0".encode() + content, usedforsecurity=False)


def changed(root: Path, paths: list[str]) -> bool:
    """Whether git, which knows filters, line ends and submodules, calls any of the tracked `paths` changed."""
    if not paths:
        return False
    some = paths if len(paths) <= 100 else ["."]  # a command line has an end
    return bool(_end(_start(root, "status", "--porcelain", "-z", "--untracked-files=no", "--", *some))[0])


def _start(root: Path, *words: str) -> subprocess.Popen[bytes] | None:
    command = ["git", "--no-optional-locks", "--literal-pathspecs", "-C", str(root), *words]
    environ = {**os.environ, "LC_ALL": "C"}  # git reads no translations
    try:
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return None


def _end(process: subprocess.Popen[bytes] | None) -> tuple[str, int]:
    """What it printed, and its exit code."""
    if process is None:
        return "", 127
    return os.fsdecode(process.communicate()[0]), process.returncode
